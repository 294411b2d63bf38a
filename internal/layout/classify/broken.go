package classify

import (
	"strconv"
	"time"

	"github.com/kv3fs/kv3fs/internal/layout/gds"
)

// Trouble is what is wrong with a file whose writer is gone.
type Trouble uint8

// The kinds of trouble.
const (
	Fine Trouble = iota

	// Orphaned: a temporary file that nobody has written to for its grace time.
	Orphaned

	// Empty: a file of an entry that has no bytes. No owner writes one.
	Empty

	// Short: fewer bytes than the name promises, or than the same item has in the directory of another rank.
	Short

	// Partial: a file of KVCM's with fewer blocks than its name promises. Its clients can read those that are there.
	Partial

	// Ragged: no whole number of blocks, of an owner that writes nothing else.
	Ragged

	// Long: more bytes than the name promises.
	Long

	// Holed: ranges of the file were never written, of an owner that writes its whole file.
	Holed

	// DataAlone and SideAlone: one file of a pair without the other.
	DataAlone
	SideAlone

	// Reopened: a block that has its name, and is also being written under its temporary one. Its
	// writer gave it the name before it had all shards.
	Reopened

	troubles
)

var troubleTexts = [troubles]string{
	"fine", "a temporary file that was not completed", "empty", "shorter than its name says", "fewer blocks than its name says", "no whole number of blocks", "longer than its name says",
	"has holes", "its side file is missing", "its data file is missing", "named before it was whole",
}

// String says it in words.
func (t Trouble) String() string {
	if t < troubles {
		return troubleTexts[t]
	}
	return troubleTexts[Fine]
}

// Facts are what is known of a file beside its path.
type Facts struct {
	SizeBytes int64

	// AllocatedBytes is what the file takes on the disk. Unallocated says that nothing is known of
	// it: a file system that compresses, or counts late, has fewer than were written.
	AllocatedBytes int64

	// Modified is the mtime.
	Modified time.Time

	// Other says whether the file at OtherOf is there: the other one of a pair or, of a block of
	// Ds3fs, its temporary one. The latter counts if it is Orphaned itself: else another writer may
	// have it.
	Other Presence

	// Peers are the files of the same name in the directories that File.PeerDirs names, as far as they are there.
	Peers []Peer
}

// Unallocated is Facts.AllocatedBytes where it is not known.
const Unallocated = -1

// Presence is whether a file is there.
type Presence uint8

// The answers.
const (
	NotKnown Presence = iota
	Absent
	Present
)

// Shape is what the blocks of a directory have in common, as far as it is known: from a
// configuration, or from BlockBytes. Its zero value knows nothing.
type Shape struct {
	BlockBytes int64 // RTP-LLM, KVCM: of a block; 0: not known
	MostBlocks int   // RTP-LLM, KVCM: in a file; 0: not known
}

// OtherOf returns the path whose presence Facts.Other wants, "" where there is none.
func (f File) OtherOf() string {
	switch {
	case f.Temp:
	case f.Owner == GDS && f.Part == Data:
		return f.Entry + gds.SideSuffix
	case f.Owner == GDS:
		return f.Entry
	case f.Owner == Ds3fs && f.Root == "":
		return tempOfDs3fs + "/" + f.Key
	case f.Owner == Ds3fs:
		return f.Root + "/" + tempOfDs3fs + "/" + f.Key
	}
	return ""
}

// mostPeers bounds PeerDirs: names may be anybody's.
const mostPeers = 63

// PeerDirs returns the directories whose files of the same name Facts.Peers wants. They are the same for all files of a directory, but for those of
// which none is wanted. RTP-LLM's ranks write the same items, each its part of every block, and the parts are of one
// size: where one rank's file is shorter than another's, it is not whole. Nothing else tells how many blocks an item of several has.
func (f File) PeerDirs() (dirs []string) {
	if f.Owner != RTPLLM || f.Blocks == 1 {
		return nil
	}
	ranks, _ := cutLast(f.Root)
	for r := 0; r < f.WorldSize && len(dirs) < mostPeers; r++ {
		if r != f.Rank {
			dirs = append(dirs, ranks+"/"+strconv.Itoa(r))
		}
	}
	return dirs
}

// SizeBounds returns how many bytes the name promises at least, and at most: -1 where there is no
// bound. Without the size of a block, RTP-LLM's and KVCM's names promise one byte.
func (f File) SizeBounds(s Shape) (least, most int64) {
	switch {
	case f.Temp || f.Owner == Unknown:
		return 0, -1
	case f.Owner == Replay:
		return f.sizeBytes, f.sizeBytes
	case f.Owner == GDS && f.Part == Side:
		return gds.HeaderBytes, gds.HeaderBytes
	case f.Owner == GDS:
		return gds.HeaderBytes + 1, -1
	case !f.hasBlocks():
		return least1(f), -1
	case s.BlockBytes <= 0:
		return 1, -1
	}
	least, most = int64(f.Blocks)*s.BlockBytes, -1
	switch {
	case f.Blocks == 1:
		most = s.BlockBytes
	case s.MostBlocks > 0:
		most = int64(max(f.Blocks, s.MostBlocks)) * s.BlockBytes
	}
	return least, most
}

// least1 returns 1 for files of entries that may be removed: their owners write none without bytes.
func least1(f File) int64 {
	if f.Delete.Evictable() && f.Owner != BlockStore || f.Owner == RTPLLMOld {
		return 1
	}
	return 0
}

// writesAll reports whether the owner writes every byte of its files, at their final names: a hole
// is then where a writer was not done.
func (f File) writesAll() bool {
	return f.hasBlocks() || f.Owner == RTPLLMOld || f.Owner == LMCacheObject
}

// Broken says what is wrong with a file, and Fine for every file that may still be in a writer's
// hands: one that was written within the file's own grace time, or within the caller's if that is
// longer. A file from the future has just been written. What can be seen in its content alone, a
// damaged header or wrong bytes, is not for names and sizes to tell.
//
// MayReap says which files with trouble may be removed, by the rules of their Deletion, and Evidence of which of them it is certain.
// Trouble with another file is for an operator to read.
func (f File) Broken(is Facts, s Shape, now time.Time, grace time.Duration) Trouble {
	if f.Owner == Unknown || now.Sub(is.Modified) < max(f.Grace, grace) {
		return Fine
	}
	return f.trouble(is, s)
}

// trouble is Broken for a file of a known owner that is old enough.
func (f File) trouble(is Facts, s Shape) Trouble {
	if f.Temp {
		return Orphaned
	}
	least, most := f.SizeBounds(s)
	switch {
	case is.SizeBytes <= 0 && least > 0:
		return Empty
	case f.Part == Side && is.Other == Absent:
		return SideAlone
	case is.SizeBytes < least && f.Owner == KVCM && is.SizeBytes >= s.BlockBytes:
		return Partial
	case is.SizeBytes < least, is.SizeBytes < is.longestPeer(s):
		return Short
	case most >= 0 && is.SizeBytes > most:
		return Long
	case f.hasBlocks() && s.BlockBytes > 0 && is.SizeBytes%s.BlockBytes != 0:
		return Ragged
	case f.writesAll() && is.AllocatedBytes != Unallocated && is.AllocatedBytes < is.SizeBytes:
		return Holed
	case f.Owner == GDS && is.Other == Absent:
		return DataAlone
	case f.Owner == Ds3fs && is.Other == Present:
		return Reopened
	}
	return Fine
}

// MayReap reports whether a file with trouble may be removed once its writer is gone. A file of KVCM's may if no block in it is
// whole: its clients compare its size before they read, and fail; its service takes a file that is there for a good one, and one
// that is gone for a block that is gone.
func (f File) MayReap(is Trouble) bool {
	switch f.Delete {
	case ByService:
		return is == Empty || is == Short
	case WhenIdle:
		return is != Fine
	}
	return is != Fine && f.Delete.Evictable()
}

// Sibling is a file beside others, for BlockBytes.
type Sibling struct {
	File
	SizeBytes int64
}

// BlockBytes returns how large a block of a directory of RTP-LLM's or KVCM's is, by its files, and
// whether they tell. The files of one block do, if most of them have one size and the sizes of most
// of the others are multiples of it. Give it no file that is younger than its grace time.
func BlockBytes(files []Sibling) (bytes int64, ok bool) {
	votes, voters := map[int64]int{}, 0
	for _, is := range files {
		if is.hasBlocks() && is.Blocks == 1 {
			votes[is.SizeBytes]++
			voters++
		}
	}
	for size, n := range votes {
		if 2*n > voters {
			bytes = size
		}
	}
	if bytes <= 0 {
		return 0, false
	}
	whole, all := 0, 0
	for _, is := range files {
		if is.hasBlocks() && is.Blocks > 1 {
			all++
			if is.SizeBytes > bytes && is.SizeBytes%bytes == 0 {
				whole++
			}
		}
	}
	return bytes, 2*whole > all || all == 0
}

// hasBlocks reports whether the owner writes blocks of one size.
func (f File) hasBlocks() bool { return !f.Temp && (f.Owner == RTPLLM || f.Owner == KVCM) }
