// Package tier is a kv.Store that keeps blocks in a store that is near, such as the host's
// own disk, in front of one that is far, such as a file system that many hosts share.
//
//	Lookup  a block exists if either store has it. What only the far one has was saved by
//	        another host, or was evicted here.
//	Load    what the near store has comes from there, the rest from the far one. Blocks that
//	        come from far are kept near, in the background.
//	Save    is done when the near store has the block. A bounded queue of keys says what is
//	        still to be sent; the bytes are read back from the near store. With WriteThrough
//	        a save is done when the far store has it.
//	Delete  deletes from both. What is on its way between them is stopped first.
//
// The far store may be slow, full, failing or hung. While it does not answer, nobody but one
// goroutine asks it: lookups answer from the near store, and loads that it cannot serve fail
// at once. While it takes no blocks, one at a time is tried. A damaged block of the near store is loaded from the far one.
//
// What is in which goroutine: senders move blocks from near to far, keepers write near what
// loads brought from far, the filler reads from far what loads brought only in part, and
// watch asks a far store that did not answer whether it does again.
package tier
