"""The placements that trainers choose from; see `prototrain.model.placement`."""

from prototrain.model.placement import CentralPlacement, OwnPacePlacement, Placement

__all__ = ["CentralPlacement", "OwnPacePlacement", "Placement"]
