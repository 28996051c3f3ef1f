"""The one service that starts jobs and keeps the truth about them. Started as `python -m slicelift_hub.launcher`."""
