// Package rtpkeys has what the store and the doctor both have to know of the values in RTP-LLM's
// environment, and of the JSON that configures KVCM's SDK: what each may be, and in which form.
package rtpkeys

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/kv3fs/kv3fs/internal/pyyaml"
)

const (
	// MostFileBlocks is how many blocks a file may have.
	MostFileBlocks = 1024

	mostRanks   = 4096
	mostThreads = 4096
	mostQueued  = 1 << 30
	mostBytes   = 1 << 50
	mib         = 1 << 20

	itemBlocks = "MAX_BLOCK_SIZE_PER_ITEM"
	writeIov   = "THREEFS_WRITE_IOV_SIZE"
	window     = "KVCM_SW_SIZE"
	replicas   = "KVCM_MIN_REPLICA_COUNT"
)

// limits are what a number may be, from the first to the second.
type limits struct{ least, most int64 }

// numbers are by variable.
var numbers = map[string]limits{
	"TP_SIZE":                          {1, mostRanks},
	itemBlocks:                         {1, MostFileBlocks},
	"THREEFS_MATCH_TIMEOUT_MS":         {1, math.MaxInt32},
	"THREEFS_RPC_GET_CACHE_TIMEOUT_MS": {1, math.MaxInt32},
	"THREEFS_RPC_PUT_CACHE_TIMEOUT_MS": {1, math.MaxInt32},
	"THREEFS_READ_TIMEOUT_MS":          {1, math.MaxInt32},
	"THREEFS_WRITE_TIMEOUT_MS":         {1, math.MaxInt32},
	"THREEFS_READ_IOV_SIZE":            {1, mostBytes},
	writeIov:                           {1, mostBytes},
	window:                             {0, mostQueued},
	replicas:                           {0, mostQueued},
}

// words are by variable; the first one is the default. With another value RTP-LLM does not
// start.
var words = map[string][]string{
	"KVCM_REMOTE_LAYOUT":      {"legacy", "canonical_v1"},
	"KVCM_DEFAULT_QUERY_TYPE": {"2", "1", "3", "4"},
	"KVCM_QUERY_TYPE":         {"0", "1", "2", "3", "4"},
	"KVCM_READ_BACKEND_TYPE":  {"0", "1", "2", "3", "4", "5", "9"},
}

// Direct returns the numbers of RTP-LLM's own 3FS tier, Queries the variables of KVCM's.
func Direct() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(numbers)), func(name string) bool { return name != itemBlocks && !strings.HasPrefix(name, "THREEFS_") })
}

func Queries() []string {
	return append(slices.Sorted(maps.Keys(words)), window, replicas)
}

// Number returns the number of a variable, 0 where it is empty, which is as if it were not set.
func Number(name, text string) (int64, *pyyaml.Refusal) {
	is := numbers[name]
	text = strings.TrimSpace(text)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil || n < is.least || n > is.most:
		return 0, &pyyaml.Refusal{What: fmt.Sprintf("is %.80q", text), Fix: fmt.Sprintf("write a whole number, %d to %d", is.least, is.most)}
	case name == writeIov && n%mib != 0:
		return 0, &pyyaml.Refusal{What: fmt.Sprintf("is %d; RTP-LLM divides the buffer into blocks of 1 MiB", n), Fix: "write a multiple of 1048576"}
	}
	return n, nil
}

// Word returns the word of a variable, its default where it is empty.
func Word(name, text string) (string, *pyyaml.Refusal) {
	known := words[name]
	switch {
	case text == "":
		return known[0], nil
	case !slices.Contains(known, text):
		return known[0], &pyyaml.Refusal{What: fmt.Sprintf("is %.80q", text), Fix: "write one of: " + strings.Join(known, ", ")}
	}
	return text, nil
}

// A Refused is a variable, or a key below one, with what is wrong.
type Refused struct {
	Name string
	pyyaml.Refusal
}

// CheckQueries checks the variables of KVCM's queries, each and together.
func CheckQueries(value func(name string) string) (all []Refused) {
	is, size := map[string]string{}, int64(0)
	for _, name := range Queries() {
		var refused *pyyaml.Refusal
		if words[name] != nil {
			is[name], refused = Word(name, value(name))
		} else {
			var n int64
			if n, refused = Number(name, value(name)); name == window {
				size = n
			}
		}
		if refused != nil {
			all = append(all, Refused{name, *refused})
		}
	}
	query, request := is["KVCM_DEFAULT_QUERY_TYPE"], is["KVCM_QUERY_TYPE"]
	if request != "0" {
		query = request
	}
	if query == "3" && size == 0 {
		all = append(all, Refused{window, pyyaml.Refusal{What: "is 0, but query type 3 needs a window", Fix: "write the window's size in blocks"}})
	}
	if backend := is["KVCM_READ_BACKEND_TYPE"]; backend != "0" && request > "1" {
		all = append(all, Refused{"KVCM_READ_BACKEND_TYPE", pyyaml.Refusal{What: fmt.Sprintf("is %s, with which KVCM_QUERY_TYPE may only be 0 or 1", backend), Fix: "write KVCM_READ_BACKEND_TYPE=0"}})
	}
	return all
}
