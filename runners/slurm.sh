#!/bin/sh
# The GPUs of a node of a Slurm cluster vouch for the commit of this clone.
# Needs: a clone that the nodes see; nodes that reach no network also need `make .venv/ready-for-tests` beforehand.
# Costs: half an hour of a node with 8 GPUs, from what your project has on the cluster.
# Start: sbatch runners/slurm.sh, from the clone; with fewer GPUs: sbatch --gpus-per-node=2 runners/slurm.sh
#SBATCH --job-name=vouch
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --time=01:00:00
set -eu
make gpu-check
sh tools/record_run.sh # into runs/
