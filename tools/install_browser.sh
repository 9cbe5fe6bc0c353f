#!/bin/sh
# The tests of the site open it in Chromium. Installs Debian's package where that
# is possible; elsewhere the tests use whatever browser there is, or say that none is.
for browser in chromium chromium-browser google-chrome; do
    command -v "$browser" >/dev/null && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null
else
    echo "no browser found; install Chromium for the tests of the site, or run: .venv/bin/playwright install chromium" >&2
fi
