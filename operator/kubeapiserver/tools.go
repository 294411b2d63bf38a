//go:build tools

// Package kubeapiserver pins the kube-apiserver that tests run against. It is built from its modules by scripts/kubeapiserver.
package kubeapiserver

import _ "k8s.io/kubernetes/cmd/kube-apiserver"
