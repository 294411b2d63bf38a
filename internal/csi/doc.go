// Package csi is the node plugin of kubelet's storage interface (CSI): it answers kubelet on a unix socket, registers itself with it, and
// has package volumes bind what pods ask for. There is no controller: a volume is a part of the cache that is on the node, for
// as long as the pod has it.
package csi
