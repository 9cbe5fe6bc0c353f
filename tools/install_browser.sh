#!/bin/sh
# Installs Debian's Chromium, which the tests of the site open it in and make print prints with, and the packages that
# are named, where that is possible; elsewhere whatever is there is used, such as firefox for firefox-esr.
chromium=chromium
for browser in chromium-headless-shell chromium chromium-browser google-chrome; do
    command -v "$browser" >/dev/null && chromium=
done
missing=
for package; do
    dpkg -s "$package" >/dev/null 2>&1 || command -v "${package%-esr}" >/dev/null || missing="$missing $package"
done
[ -n "$chromium$missing" ] || exit 0
sudo=
[ -z "${CI:-}" ] || sudo=$(command -v sudo || true) # nobody minds what is installed on a machine of CI
if { [ "$(id -u)" = 0 ] || [ -n "$sudo" ]; } && command -v apt-get >/dev/null; then
    $sudo apt-get update -qq
    # Debian has it without windows, too, which needs less than half of the processor time; Ubuntu has not.
    [ -z "$chromium" ] || [ -z "$(apt-cache pkgnames chromium-headless-shell)" ] || chromium="chromium-headless-shell"
    # shellcheck disable=SC2086 # several words
    $sudo apt-get install -y -qq --no-install-recommends $chromium $missing >/dev/null
elif [ -n "$chromium" ]; then
    echo "no browser found; install Chromium for the tests of the site, or run: .venv/bin/playwright install chromium" >&2
fi
