"""Fine-tuning tasks: data, heads, metrics."""
