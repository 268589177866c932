"""From predictions to scores: metrics, label scoring, result files and plots."""
