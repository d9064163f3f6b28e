//go:build tools

// Package main's tools: the other programs of the local cluster, named here so that go.mod and go.sum
// pin them and all that they import. Each is built from its own import path.
package main

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
	_ "github.com/prometheus/prometheus/cmd/promtool"
	_ "helm.sh/helm/v3/cmd/helm"
)
