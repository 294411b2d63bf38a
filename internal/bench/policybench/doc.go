// Package policybench replays the blocks of a prompt trace against simulated caches and
// compares kv3fs's eviction policy with LRU, FIFO, LFU, S3-FIFO and the best that any
// policy could do that knew the future. No block is read or written.
//
// A cache holds a number of blocks. For each request, the blocks at its beginning that the
// cache holds are hits, up to the first that it lacks: an engine cannot use what follows a
// gap. Then all blocks of the request are used, the last one first, which stores those
// that were missing. The hit ratio is hits divided by blocks requested.
package policybench
