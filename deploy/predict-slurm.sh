#!/bin/bash
#SBATCH --job-name=predict
#SBATCH --array=0-15
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --requeue
#SBATCH --open-mode=append

part=$(printf "parts/%02d" "$SLURM_ARRAY_TASK_ID")
palm predict --model output/cls --input "$part.jsonl" --output "$part/answers.jsonl" --resume
