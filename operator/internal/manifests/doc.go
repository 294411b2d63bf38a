// Package manifests has a real kube-apiserver take what the Helm chart renders. It contains only tests.
package manifests
