// Package kubelet does for tests what kubelet and a container runtime do on a node: it runs kv3fs csi in a mount namespace as a
// container has it, asks it for volumes, and has pods in mount namespaces of their own.
package kubelet
