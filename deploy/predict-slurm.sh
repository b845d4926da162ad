#!/bin/bash
#SBATCH --job-name=predict
#SBATCH --array=1-16
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --requeue
#SBATCH --open-mode=append

palm predict --model output/cls --input rows.jsonl --output answers.jsonl --shard "$SLURM_ARRAY_TASK_ID/16" --resume
