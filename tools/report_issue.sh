#!/bin/sh
# Opens an issue whose text is a file, or gives its new text to the issue with this title that is open already:
#   sh tools/report_issue.sh TITLE FILE
# Needs gh and GH_TOKEN. A missing file is said to be missing: the step that should have written it has failed.
set -eu
export TITLE="$1"
body=$(mktemp)
{
    echo "Run: ${GITHUB_SERVER_URL:-}/${GITHUB_REPOSITORY:-}/actions/runs/${GITHUB_RUN_ID:-}"
    echo "~~~"
    if [ -s "$2" ]; then
        head -c 60000 "$2" # GitHub takes 65,536 characters
    else
        echo "$2 was not written; the run's log says why."
    fi
    echo
    echo "~~~"
} >"$body"
number=$(gh issue list --app github-actions --state open --json number,title \
    --jq 'map(select(.title == env.TITLE))[0].number // empty')
if [ -n "$number" ]; then
    gh issue edit "$number" --body-file "$body"
else
    gh issue create --title "$TITLE" --body-file "$body"
fi
rm "$body"
