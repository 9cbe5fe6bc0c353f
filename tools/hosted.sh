#!/bin/sh
# Executes every lesson of both editions with the packages of a free notebook service, alone:
#   sh tools/hosted.sh colab|kaggle FOLDER
# FOLDER gets the environment and the executed notebooks. Fails if a lesson fails, if its Chinese labels are no text, or
# if it writes to stderr. The versions are the service's (see hosted_packages.sh); of its image, this has nothing else.
set -eu
folder=$2
sh tools/hosted_packages.sh "$1" "$folder/packages"
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --requirement "$folder/packages/base.txt" nbclient nbformat
if [ -e "$folder/packages/added.txt" ]; then
    "$folder/env/bin/pip" install --quiet --requirement "$folder/packages/added.txt"
fi
for edition in en zh; do
    for lesson in "notebooks/$edition"/*.ipynb; do
        alone="$folder/lessons/$edition-$(basename "$lesson" .ipynb)"
        rm -rf "$alone"
        mkdir -p "$alone"
        cp "$lesson" "$alone"
        echo "$lesson"
        "$folder/env/bin/python" tools/run_alone.py "$alone"/*.ipynb
    done
done
"$folder/env/bin/python" tools/look_alone.py "$folder"/lessons/*/*.ipynb
