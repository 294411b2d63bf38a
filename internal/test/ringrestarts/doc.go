// Package ringrestarts tests that clients' rings outlive a daemon that is killed or restarted.
package ringrestarts
