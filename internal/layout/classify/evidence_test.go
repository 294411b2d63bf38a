package classify

import (
	"fmt"
	"testing"
	"time"
)

// What looks cut but may be whole is not certain: files of another block size, one wrong rank, and names that only look like KVCM's.
func TestCertain(t *testing.T) {
	const kvcm = "kv/17/tp0"
	early, late := noon.Add(-72*time.Hour), noon.Add(-24*time.Hour) // facts has 48
	type file struct {
		name  string
		bytes int64
		at    time.Time
	}
	hashes := func(n int, bytes int64, at time.Time) (all []file) {
		for i := range n {
			all = append(all, file{fmt.Sprintf("3f0000000000%04x", i), bytes, at})
		}
		return all
	}
	counted := func(n int, bytes int64, at time.Time) (all []file) {
		for i := range n {
			all = append(all, file{fmt.Sprintf("%x", i), bytes, at})
		}
		return all
	}
	items := func(n int, bytes int64, at time.Time) (all []file) {
		for i := range n {
			all = append(all, file{fmt.Sprintf("%d_%d", i, i), bytes, at})
		}
		return all
	}
	peers := func(is Facts, after time.Duration, sizes ...int64) Facts {
		for _, bytes := range sizes {
			is.Peers = append(is.Peers, Peer{bytes, is.Modified.Add(after)})
		}
		return is
	}
	for name, c := range map[string]struct {
		dir     string
		files   []file // with the one that is looked at
		ownLogs bool
		block   int64
		of      string
		is      Facts
		trouble Trouble
		want    bool
	}{
		"KVCM's, cut":                               {kvcm, append(hashes(16, 8192, late), file{"3f", 100, noon}), false, 8192, "3f", facts(100), Short, true},
		"fifteen others":                            {kvcm, append(hashes(15, 8192, late), file{"3f", 100, noon}), false, 8192, "3f", facts(100), Short, false},
		"three others and our logs":                 {kvcm, append(hashes(3, 8192, late), file{"3f", 100, noon}), true, 8192, "3f", facts(100), Short, true},
		"two others and our logs":                   {kvcm, append(hashes(2, 8192, late), file{"3f", 100, noon}), true, 8192, "3f", facts(100), Short, false},
		"nothing of that size was written since":    {kvcm, append(hashes(16, 8192, early), file{"3f", 4096, noon}), false, 8192, "3f", facts(4096), Short, false},
		"two of one size":                           {kvcm, append(hashes(16, 8192, late), file{"3f", 4096, noon}, file{"4f", 4096, noon}), false, 8192, "3f", facts(4096), Short, false},
		"several blocks of that size do not count":  {kvcm, append(hashes(16, 8192, late), file{"3f", 4096, noon}, file{"4f_1", 4096, noon}), false, 8192, "3f", facts(4096), Short, true},
		"several blocks, none whole":                {kvcm, append(hashes(16, 8192, late), file{"4f_1", 4096, noon}), false, 8192, "4f_1", facts(4096), Short, true},
		"a checkpoint's shards":                     {"models/llama/tp0", append(counted(32, 8192, late), file{"20", 100, noon}), false, 8192, "20", facts(100), Short, false},
		"an empty one of KVCM's":                    {kvcm, append(hashes(16, 8192, early), file{"3f", 0, noon}), false, 8192, "3f", facts(0), Empty, true},
		"an empty one, by its directory's name":     {"x/tp1", []file{{"cafe", 0, noon}}, false, 0, "cafe", facts(0), Empty, false},
		"an empty one among a checkpoint's":         {"x/tp1", append(counted(32, 8192, late), file{"cafe", 0, noon}), false, 8192, "cafe", facts(0), Empty, false},
		"an empty one and our logs":                 {"x/tp1", []file{{"cafe", 0, noon}}, true, 0, "cafe", facts(0), Empty, true},
		"RTP-LLM's, one block cut":                  {rtpDir, append(items(3, 8192, late), file{"7_7", 100, noon}), false, 8192, "7_7", facts(100), Short, true},
		"of another configuration":                  {rtpDir, append(items(3, 8192, early), file{"7_7", 4096, noon}), false, 8192, "7_7", facts(4096), Short, false},
		"longer ones of another configuration":      {rtpDir, append(items(3, 8192, early), file{"7_7", 9000, noon}), false, 8192, "7_7", facts(9000), Long, false},
		"an item of another configuration":          {rtpDir, append(items(3, 8192, early), file{"7_9", 17000, noon}), false, 8192, "7_9", facts(17000), Ragged, false},
		"an item cut within a block":                {rtpDir, append(items(3, 8192, late), file{"7_9", 20000, noon}), false, 8192, "7_9", facts(20000), Ragged, true},
		"two items cut alike":                       {rtpDir, append(items(3, 8192, late), file{"7_9", 20000, noon}, file{"7_8", 20000, noon}), false, 8192, "7_9", facts(20000), Ragged, false},
		"an empty item":                             {rtpDir, nil, false, 0, "7_9", facts(0), Empty, true},
		"one longer peer":                           {rtpDir, nil, false, 0, "1_9", peers(facts(3*8192), 0, 9*8192), Short, false},
		"one longer peer, the block is known":       {rtpDir, append(items(3, 8192, late), file{"1_9", 3 * 8192, noon}), false, 8192, "1_9", peers(facts(3*8192), 0, 9*8192), Short, false},
		"one wrong peer of seven":                   {rtpDir, nil, false, 0, "1_9", peers(facts(3*8192), 0, 3*8192, 3*8192, 3*8192, 3*8192, 3*8192, 3*8192, 9*8192), Short, false},
		"two wrong peers of seven":                  {rtpDir, nil, false, 0, "1_9", peers(facts(3*8192), 0, 3*8192, 3*8192, 3*8192, 3*8192, 3*8192, 9*8192, 9*8192), Short, false},
		"three peers agree":                         {rtpDir, nil, false, 0, "1_9", peers(facts(3*8192), time.Second, 9*8192, 9*8192, 9*8192), Short, true},
		"two of two":                                {rtpDir, nil, false, 0, "1_9", peers(facts(3*8192), time.Second, 9*8192, 9*8192), Short, true},
		"two of three, and one with a few more":     {rtpDir, nil, false, 0, "1_9", peers(facts(3*8192), 0, 9*8192, 9*8192, 9*8192+5), Short, false},
		"they agree, and were written on other day": {rtpDir, nil, false, 0, "1_9", peers(facts(3*8192), -24*time.Hour, 9*8192, 9*8192, 9*8192), Short, false},
	} {
		e := Evidence{Shape: Shape{BlockBytes: c.block}, OwnLogs: c.ownLogs}
		for _, is := range c.files {
			e.Add(Classify(c.dir+"/"+is.name, Context{}), is.bytes, is.at, is.at.Equal(noon))
		}
		f := Classify(c.dir+"/"+c.of, Context{})
		if got := f.Broken(c.is, e.Shape, noon, 0); got != c.trouble {
			t.Errorf("%s: it is %v, want %v", name, got, c.trouble)
		}
		if got := e.Certain(f, c.is, c.trouble); got != c.want {
			t.Errorf("%s: certain %v, want %v", name, got, c.want)
		}
	}
	if e := (Evidence{}); !e.Certain(Classify(chunk+".data", Context{}), facts(0), Empty) {
		t.Error("an empty chunk of LMCache's")
	}
}

// Where files have more sizes than can be counted, none is known to be alone.
func TestManySizes(t *testing.T) {
	e := Evidence{Shape: Shape{BlockBytes: 1 << 20}}
	for i := range 3 {
		e.Add(Classify(fmt.Sprintf("%s/%d_%d", rtpDir, i, i), Context{}), 1<<20, noon, false)
	}
	cut := Classify(rtpDir+"/9_9", Context{})
	e.Add(cut, 100, noon, true)
	if !e.Certain(cut, facts(100), Short) {
		t.Error("one is cut")
	}
	for i := range int64(mostSizes) {
		e.Add(cut, 1000+i, noon, true)
	}
	if e.Certain(cut, facts(100), Short) {
		t.Error("4096 others of any size")
	}
}
