// Package csitest holds the plugin of kv3fs csi against Kubernetes' own tests of such plugins (csi-sanity). It is a module of its own, so that
// what these need burdens nobody else.
package csitest
