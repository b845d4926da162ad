"""Config-driven multi-task training on one shared BERT or ERNIE encoder."""
