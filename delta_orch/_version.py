VERSION = "0.1.0"
ENGINE_INFO = f"delta-orch/{VERSION}"
"""What `commitInfo.engineInfo` says."""
