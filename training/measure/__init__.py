"""What an exported pair can do, in figures: each module measures one thing."""
