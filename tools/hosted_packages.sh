#!/bin/sh
# Which versions a free notebook service has of the packages that lessons use, as requirements for pip:
#   sh tools/hosted_packages.sh colab|kaggle FOLDER
# FOLDER gets base.txt and, for Kaggle, added.txt, to be installed after it. Needs git. Colab publishes what it has.
# Kaggle's image is Colab's of a certain day, to which kaggle_requirements.txt adds; Colab's torch stays.
set -eu
service=$1 folder=$2
packages='torch|numpy|matplotlib|matplotlib-inline|ipykernel|ipython|jupyter[-_]client|nbclient'

# A file of a repository of GitHub: its newest version, or that of the end of a day.
file() { # OWNER/NAME FILE [DAY]
    clone=$folder/$(basename "$1").git
    [ -e "$clone" ] || git clone --quiet --bare --filter=blob:none "https://github.com/$1" "$clone"
    git -C "$clone" show "$(git -C "$clone" rev-list --max-count=1 ${3:+"--before=$3T23:59:59Z"} HEAD):$2"
}

mkdir -p "$folder"
rm -rf "$folder"/*.git "$folder"/*.txt
day=
if [ "$service" = kaggle ]; then
    for name in config.txt Dockerfile.tmpl; do # it has stood in both
        day=${day:-$(file Kaggle/docker-python "$name" | sed -nE 's/.*release-colab.*_([0-9]{4})([0-9]{2})([0-9]{2})-.*/\1-\2-\3/p' | head -n 1)}
    done
    if [ -z "$day" ]; then
        echo "Kaggle/docker-python no longer names the day of its Colab image; see how it is built now" >&2
        exit 1
    fi
    echo "Colab's image of $day"
fi
file googlecolab/backend-info pip-freeze.txt "$day" >"$folder/all.txt"
# Colab's torch comes from an index of its own; the number before the + is the version.
sed -nE "s/^($packages)(==| @ .*\/torch-)([0-9.]+).*/\1==\3/p" "$folder/all.txt" >"$folder/base.txt"
if ! grep '^torch==' "$folder/base.txt" >"$folder/torch.txt"; then
    echo "Colab's list names no version of torch; see how it is written now" >&2
    exit 1
fi
cat "$folder/base.txt"
if [ "$service" = kaggle ]; then
    {
        cat "$folder/torch.txt"
        file Kaggle/docker-python kaggle_requirements.txt | sed -nE "s/^($packages) *([<>=!~].*)?$/\1\2/p"
    } >"$folder/added.txt"
    echo "and added to it:"
    cat "$folder/added.txt"
fi
