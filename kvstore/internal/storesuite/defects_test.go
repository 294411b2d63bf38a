package storesuite

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A correct store passes: one that keeps its blocks, and one that discards them.
func TestCorrectStores(t *testing.T) {
	t.Run("keeps", func(t *testing.T) { Run(t, subject(false, "")) })
	t.Run("discards", func(t *testing.T) { Run(t, subject(true, "")) })
}

// defectOf is the environment variable with the defect that a child process tests.
const defectOf = "KV3FS_STORETEST_DEFECT"

// TestDefective runs in a child process.
func TestDefective(t *testing.T) {
	defect := os.Getenv(defectOf)
	if defect == "" {
		t.Skip("TestEveryDefectIsCaught runs this in child processes")
	}
	s := subject(false, defect)
	s.Patience = 3 * time.Second
	Run(t, s)
}

// The test of each sentence fails for a store that violates it.
func TestEveryDefectIsCaught(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for defect, sentence := range map[string]string{
		"has another layout":                        "Layout is the size of all blocks",
		"returns another key's bytes":               "keys that differ in one bit name different blocks",
		"counts a prefix beyond its gaps":           "LookupPrefix counts up to the first gap",
		"leaves what was in found":                  "Lookup finds the blocks that exist and no others",
		"takes a hint for a block":                  "Prefetch of present, absent or no blocks does no harm",
		"loses a shard":                             "saved blocks are loaded, block by block and layer by layer",
		"fails a load with one absent block":        "an absent block is a miss for its own shards alone",
		"calls a miss something else":               "Lookup finds the blocks that exist and no others",
		"replaces what is there":                    "saving a block that exists changes nothing and succeeds",
		"mixes the shards of writers":               "of writers that save a block with different bytes one wins whole",
		"mixes the shards of batches":               "shards of different writers make no block",
		"keeps what another writer has begun":       "a block that was begun by another writer is saved whole",
		"fails the second writer":                   "two writers of one block do not disturb each other",
		"shows a block before it is whole":          "a block exists when its last shard is settled, and not before",
		"completes a block with its last index":     "shards come in several batches and in any order",
		"keeps unfinished blocks":                   "unfinished blocks do not exist after Close",
		"reads saves after they were settled":       "nothing of a save is read once it is settled",
		"writes to buffers after they were settled": "nothing of a load is written once it is settled",
		"changes what it saves":                     "a save does not change its buffers",
		"writes beyond a buffer":                    "saved blocks are loaded, block by block and layer by layer",
		"takes batches that are wrong":              "a batch with a shard of a wrong length is refused",
		"takes a found of any length":               "a found of a wrong length is refused and not written to",
		"deletes nothing":                           "deleted blocks do not exist, and the others do",
		"deletes all keys but the last":             "deleted blocks do not exist, and the others do",
		"deletes all that there is":                 "deleted blocks do not exist, and the others do",
		"deletes from memory alone":                 "deleted blocks do not come back when the store is opened again",
		"fails to delete what is not there":         "deleting absent keys, no keys, or a key twice succeeds",
		"remembers what was deleted as damaged":     "a load of a block that is being deleted returns the block or a miss",
		"lists all but one":                         "Keys yields every block once",
		"lists one twice":                           "Keys yields every block once",
		"lists blocks that are not whole":           "Keys yields no unfinished block",
		"holds its lock while it lists":             "a caller may leave Keys early and call the store inside the loop",
		"goes on after an error of Keys":            "Keys yields ErrClosed once after Close",
		"lists without looking at the context":      "Keys yields the error of its context once",
		"never settles the last shard":              "every shard is settled once, and All yields each",
		"settles a shard twice":                     "every shard is settled once, and All yields each",
		"ignores contexts":                          "nothing of a batch is begun when its context has ended",
		"counts no lookups":                         "Stats count what happened",
		"holds more than it says":                   "Stats count what happened",
		"flushes nothing":                           "flushed blocks exist after Close and Open",
		"writes only what was flushed":              "Close writes the blocks that were accepted",
		"returns what another namespace has":        "a store returns no block of another namespace",
		"returns what is damaged":                   "a damaged block is never returned and can be saved again",
		"counts no damage":                          "a damaged block is never returned and can be saved again",
		"keeps what is damaged":                     "a damaged block is never returned and can be saved again",
		"cannot be closed twice":                    "Close may be called twice, also concurrently",
		"answers after Close":                       "after Close every call returns ErrClosed",
		"lets Close wait for nothing":               "Close settles everything that is under way",
		"ends lookups otherwise while it closes":    "Close settles everything that is under way",
		"leaves a goroutine":                        "Close leaves no goroutine and no open file",
		"leaves a file open":                        "Close leaves no goroutine and no open file",
	} {
		t.Run(defect, func(t *testing.T) {
			t.Parallel()
			name := strings.ReplaceAll(sentence, " ", "_")
			child := exec.CommandContext(t.Context(), self, "-test.run=^TestDefective$/^"+regexp.QuoteMeta(name)+"$", "-test.timeout=60s")
			child.Env = append(os.Environ(), defectOf+"="+defect)
			out, err := child.CombinedOutput()
			if err == nil {
				t.Fatalf("a store that %s passes %q:\n%s", defect, sentence, out)
			}
			if !strings.Contains(string(out), "FAIL: TestDefective/"+name) && !strings.Contains(string(out), "panic: kvstore: shard settled twice") {
				t.Fatalf("a store that %s fails, but not in %q:\n%s", defect, sentence, out)
			}
		})
	}
}
