#!/bin/sh
# Installs Debian's Chromium, which the tests of the site open it in and make print prints with, and the packages that
# are named, where that is possible; elsewhere whatever is there is used, such as firefox for firefox-esr.
missing=chromium
for browser in chromium chromium-browser google-chrome; do
    command -v "$browser" >/dev/null && missing=
done
for package; do
    dpkg -s "$package" >/dev/null 2>&1 || command -v "${package%-esr}" >/dev/null || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
sudo=
[ -z "${CI:-}" ] || sudo=$(command -v sudo || true) # nobody minds what is installed on a machine of CI
if { [ "$(id -u)" = 0 ] || [ -n "$sudo" ]; } && command -v apt-get >/dev/null; then
    # shellcheck disable=SC2086 # several words
    $sudo apt-get update -qq && $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
elif [ "${missing#chromium}" != "$missing" ]; then
    echo "no browser found; install Chromium for the tests of the site, or run: .venv/bin/playwright install chromium" >&2
fi
