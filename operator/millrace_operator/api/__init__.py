"""The custom resource: its types, the CRD generated from them, its conditions. Knows no API server."""
