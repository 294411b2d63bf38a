// Package volumes gives pods parts of a daemon's mount: it binds them at the directories that kubelet asks for, and binds them
// again once the daemon was replaced. It knows mounts and files, and nothing of CSI's protocol.
//
// What is published is noted in small files, so that a plugin that starts again knows it, and compared with the table of mounts.
// Nothing is unmounted when the plugin ends: running pods keep their volumes.
//
// A call on a mount may hang as long as its daemon does. Every such call here is bounded: its caller gets an error when the
// patience is over, and further calls for the same volume are refused until it has come back.
package volumes
