// Package curve estimates, from the uses of a cache as they come, what a larger or smaller
// cache would have served: its miss-ratio curve under LRU.
//
// It is SHARDS with a sample of bounded size (Waldspurger, Park, Garthwaite and Ahmad,
// "Efficient MRC Construction with SHARDS", FAST 2015): only keys whose hash is under a
// threshold are followed, and the threshold falls when there are too many. For a use of
// such a key, the bytes of other followed keys that were used since its last use, divided by
// the part of keys that is followed, tell how large a cache must be to serve it.
package curve
