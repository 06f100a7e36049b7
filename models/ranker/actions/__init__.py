"""What can be done with a trained ranker: `prototrain action models.ranker models.ranker.actions.evaluate`."""
