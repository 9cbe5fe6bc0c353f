#!/bin/sh
# Two T4 GPUs that Kaggle lends vouch for a commit, and what they record comes into runs/.
# Needs: KAGGLE_USERNAME and KAGGLE_API_TOKEN of an account whose telephone number Kaggle knows; a commit that is pushed.
# Costs: nothing; about half an hour of the 30 GPU hours that Kaggle gives each account every week.
# Start: sh runners/kaggle/vouch.sh [COMMIT]
set -eu
cd "$(dirname "$0")/../.."
work=_build/kaggle

stop() {
    echo "kaggle: $1; nothing was recorded" >&2
    exit 1
}

# What a command of Kaggle's client said, as one line: its last one.
line() {
    printf '%s\n' "${1:-no answer}" | sed -e '/^ *$/d' -e 's/^Kernel push error: //' -e 's/[.; ]*$//' | tail -n 1
}

[ -n "${KAGGLE_USERNAME:-}" ] || stop "KAGGLE_USERNAME is not set"
commit=$(git rev-parse --verify --quiet "${1:-HEAD}^{commit}") || stop "there is no commit ${1:-HEAD}"
address=${GITHUB_REPOSITORY:+https://github.com/$GITHUB_REPOSITORY}
# As Kaggle can fetch it: not by SSH, and without a name or password that may stand in the address.
[ -n "$address" ] || address=$(git remote get-url origin 2>/dev/null |
    sed -e 's|^git@\([^:]*\):|https://\1/|' -e 's|^ssh://|https://|' -e 's|://[^/]*@|://|') || :
[ -n "$address" ] || stop "this repository has no remote called origin, from which Kaggle could fetch the commit"
client=$(command -v kaggle) || client=$work/client/bin/kaggle
if ! [ -x "$client" ]; then
    python3 -m venv $work/client
    $work/client/bin/pip install --quiet --disable-pip-version-check --requirement runners/kaggle/requirements.txt
fi

rm -rf $work/push $work/output
mkdir -p $work/push $work/output
sed -e "s|THE-REPOSITORY|$address|" -e "s|THE-COMMIT|$commit|" runners/kaggle/vouch.ipynb >$work/push/vouch.ipynb
sed "s|THE-USER|$KAGGLE_USERNAME|" runners/kaggle/kernel-metadata.json >$work/push/kernel-metadata.json
kernel=$KAGGLE_USERNAME/vouch-for-the-book
page=https://www.kaggle.com/code/$kernel

# Kaggle stops the notebook after 50 minutes. The client's exit code is 0 even if Kaggle refuses.
said=$("$client" kernels push --path $work/push --accelerator NvidiaTeslaT4 --timeout 3000 2>&1) || :
case $said in
*"successfully pushed"*) echo "sent: $page" ;;
*[Qq]uota* | *"session count"*) stop "the quota is used up: $(line "$said")" ;;
*[Aa]ccelerator* | *achine*hape*) stop "no accelerator: $(line "$said")" ;;
*uthenticat* | *Unauthorized*) stop "Kaggle does not know this account: set KAGGLE_API_TOKEN" ;;
*) stop "the notebook was not taken: $(line "$said")" ;;
esac

ends=$(($(date +%s) + ${VOUCH_PATIENCE:-3300}))
state=
while [ "$state" != complete ]; do
    [ "$(date +%s)" -lt "$ends" ] || stop "the notebook has not come to its end: $(line "$said"); see $page"
    sleep "${VOUCH_PAUSE:-60}"
    said=$("$client" kernels status "$kernel" 2>&1) || : # a failure of the network passes
    state=$(echo "$said" | sed -nE 's/.* has status "([A-Za-z]+\.)?([A-Za-z_]+)".*/\2/p' | tr '[:upper:]' '[:lower:]')
    case $state in
    error | cancel*) stop "the notebook failed: $(line "$said"); see $page" ;;
    esac
done

said=$("$client" kernels output "$kernel" --path $work/output --force --quiet 2>&1) ||
    stop "its output could not be fetched: $(line "$said")"
verdict=$(cat $work/output/verdict.txt 2>/dev/null) || stop "the notebook left no verdict; see $page"
case $verdict in
vouched:*) ;;
*) stop "$verdict" ;;
esac
known=$(echo "$commit" | cut -c 1-12)
for file in ${verdict#vouched:}; do
    grep -q "\"commit\": \"$known\"" "$work/output/$file" 2>/dev/null ||
        stop "$file is not of commit $known; start again"
done
rm -rf _build/recorded
mkdir -p _build/recorded
for file in ${verdict#vouched:}; do
    cp "$work/output/$file" _build/recorded/
    cp "$work/output/$file" runs/
    echo "recorded: runs/$file"
done
