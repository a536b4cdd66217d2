"""The local MoE runtime: scheduler, capture, draft model, disaggregation; it knows no trace format."""
