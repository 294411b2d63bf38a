// Package blocksoak is tests: chains of the block store whose process is killed,
// whose files are damaged, at random and again and again. No byte that comes back
// may be wrong, and no block that Flush has covered may be lost by a kill.
package blocksoak
