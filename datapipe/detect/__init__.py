"""Detectors of personal data, secrets and regions: text or pixels in, spans or boxes out; no policy."""
