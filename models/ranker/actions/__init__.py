"""Actions on a trained ranker: `prototrain action models.ranker models.ranker.actions.evaluate`."""
