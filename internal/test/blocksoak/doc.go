// Package blocksoak tests chains of the block store while their process is killed, and while
// several processes use and damage their files, at random and again and again. No byte that
// is loaded may be wrong, and a kill may lose no block that Flush has covered.
package blocksoak
