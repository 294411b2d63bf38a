package storesuite

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// An honest store passes, one that keeps and one that discards.
func TestHonest(t *testing.T) {
	t.Run("keeps", func(t *testing.T) { Run(t, subject(false, "")) })
	t.Run("discards", func(t *testing.T) { Run(t, subject(true, "")) })
}

// defectOf names the defect of the store that a child process has.
const defectOf = "KV3FS_STORETEST_DEFECT"

// TestDefective is what a child process runs.
func TestDefective(t *testing.T) {
	defect := os.Getenv(defectOf)
	if defect == "" {
		t.Skip("this is for the children of TestEveryDefectIsCaught")
	}
	s := subject(false, defect)
	s.Patience = 3 * time.Second
	Run(t, s)
}

// Each sentence's test fails for a store that breaks it.
func TestEveryDefectIsCaught(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for defect, sentence := range map[string]string{
		"has another layout":                        "Layout is the size of all blocks",
		"returns another key's bytes":               "keys that differ in one bit name different blocks",
		"counts a prefix beyond its gaps":           "LookupPrefix counts up to the first gap",
		"leaves what was in found":                  "Lookup finds what is there, and nothing else",
		"takes a hint for a block":                  "Prefetch does no harm, be it of what is there, of what is not, or of nothing",
		"loses a shard":                             "what was dumped is loaded, block by block and layer by layer",
		"fails a load with one absent block":        "an absent block is a miss of its own shards, and the others are loaded",
		"calls a miss something else":               "Lookup finds what is there, and nothing else",
		"replaces what is there":                    "dumping a block that is there changes nothing and succeeds",
		"fails the second writer":                   "two writers of one block do not disturb each other",
		"shows a block before it is whole":          "a block is there when its last shard is settled, and not before",
		"completes a block with its last index":     "shards come in several batches and in any order",
		"keeps unfinished blocks":                   "unfinished blocks are nowhere after Close",
		"reads dumps after they were settled":       "nothing of a dump is read once it is settled",
		"writes to buffers after they were settled": "nothing of a load is written once it is settled",
		"changes what it dumps":                     "a dump does not change its buffers",
		"writes beyond a buffer":                    "what was dumped is loaded, block by block and layer by layer",
		"takes batches that are wrong":              "a shard of a wrong length is refused, with the whole batch",
		"takes a found of any length":               "a found of a wrong length is refused, and nothing of it is written",
		"deletes nothing":                           "what was deleted is not there, and the rest is",
		"deletes all keys but the last":             "what was deleted is not there, and the rest is",
		"deletes all that there is":                 "what was deleted is not there, and the rest is",
		"deletes from memory alone":                 "what was deleted does not come back when the store is opened again",
		"fails to delete what is not there":         "deleting what is not there, or nothing, or one key twice succeeds",
		"remembers what was deleted as damaged":     "a load while its block is deleted brings the block or a miss",
		"lists all but one":                         "Keys yields every block that is there, once",
		"lists one twice":                           "Keys yields every block that is there, once",
		"lists blocks that are not whole":           "Keys yields no block that is not whole",
		"holds its lock while it lists":             "a caller may leave Keys early, and use the store in the middle of it",
		"goes on after an error of Keys":            "Keys after Close says so, once",
		"lists without looking at the context":      "Keys whose context has ended says so, once",
		"never settles the last shard":              "every shard is settled once, and All gives each in turn",
		"settles a shard twice":                     "every shard is settled once, and All gives each in turn",
		"ignores contexts":                          "of a batch whose context has ended nothing is begun",
		"counts no lookups":                         "Stats count what happened",
		"holds more than it says":                   "Stats count what happened",
		"flushes nothing":                           "what was flushed is there after Close and Open",
		"writes only what was flushed":              "Close writes what was accepted",
		"returns what another namespace has":        "a store returns no block of another namespace",
		"returns what is damaged":                   "of what was damaged nothing is returned, and it can be dumped again",
		"counts no damage":                          "of what was damaged nothing is returned, and it can be dumped again",
		"keeps what is damaged":                     "of what was damaged nothing is returned, and it can be dumped again",
		"cannot be closed twice":                    "closing twice is harmless, also at once",
		"answers after Close":                       "after Close every call says so",
		"lets Close wait for nothing":               "Close settles everything that is under way",
		"ends lookups otherwise while it closes":    "Close settles everything that is under way",
		"leaves a goroutine":                        "after Close no goroutine and no file is left",
		"leaves a file open":                        "after Close no goroutine and no file is left",
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
