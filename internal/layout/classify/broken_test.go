package classify

import (
	"slices"
	"testing"
	"time"
)

var noon = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

// facts are those of an old file without holes.
func facts(sizeBytes int64) Facts {
	return Facts{SizeBytes: sizeBytes, AllocatedBytes: (sizeBytes + 4095) / 4096 * 4096, Modified: noon.Add(-48 * time.Hour)}
}

func TestBroken(t *testing.T) {
	holed := func(sizeBytes int64) Facts {
		is := facts(sizeBytes)
		is.AllocatedBytes -= 4096
		return is
	}
	other := func(is Facts, other Presence) Facts {
		is.Other = other
		return is
	}
	peer := func(is Facts, sizeBytes int64) Facts {
		is.Peers = []Peer{{sizeBytes / 2, is.Modified}, {sizeBytes, is.Modified}}
		return is
	}
	unallocated := holed(8192)
	unallocated.AllocatedBytes = Unallocated
	blocks := Shape{BlockBytes: 4096, MostBlocks: 16}
	ds3fs := Context{Above: DotTemp}
	const replay = "r/1f/000000000000031f-r2-65536"
	item, one := rtpDir+"/-5_77", rtpDir+"/9_9"
	for name, c := range map[string]struct {
		path  string
		in    Context
		is    Facts
		shape Shape
		want  Trouble
	}{
		"a whole item":                      {item, Context{}, facts(16 * 4096), blocks, Fine},
		"the last item of a prompt":         {item, Context{}, facts(2 * 4096), blocks, Fine},
		"an item of one block that has two": {item, Context{}, facts(4096), blocks, Short},
		"an item with half a block":         {item, Context{}, facts(3*4096 + 2048), blocks, Ragged},
		"an item of too many blocks":        {item, Context{}, facts(17 * 4096), blocks, Long},
		"an item of any number of blocks":   {item, Context{}, facts(17 * 4096), Shape{BlockBytes: 4096}, Fine},
		"an item, nothing known":            {item, Context{}, facts(1), Shape{}, Fine},
		"an item of nine blocks with three": {item, Context{}, peer(facts(3*4096), 9*4096), blocks, Short},
		"the same, nothing else known":      {item, Context{}, peer(facts(3*4096), 9*4096), Shape{}, Short},
		"its peer is the one with three":    {item, Context{}, peer(facts(9*4096), 3*4096), blocks, Fine},
		"its peer is as long":               {item, Context{}, peer(facts(9*4096), 9*4096), blocks, Fine},
		"its peer has something appended":   {item, Context{}, peer(facts(9*4096), 9*4096+1), blocks, Fine},
		"an empty item":                     {item, Context{}, facts(0), Shape{}, Empty},
		"an item with a hole":               {item, Context{}, holed(16 * 4096), blocks, Holed},
		"holes are not known":               {item, Context{}, unallocated, blocks, Fine},
		"one block":                         {one, Context{}, facts(4096), blocks, Fine},
		"less than one block":               {one, Context{}, facts(4095), blocks, Short},
		"more than one block":               {one, Context{}, facts(8192), blocks, Long},
		"a block beside items, cut off":     {rtpDir + "/" + key, Context{}, facts(4095), blocks, Short},
		"the first generation":              {"chat/1234/no_lora/64/14/0/4/3/77", Context{}, facts(5), blocks, Fine},
		"the first generation, empty":       {"chat/1234/no_lora/64/14/0/4/3/77", Context{}, facts(0), blocks, Empty},
		"the first generation, a hole":      {"chat/1234/no_lora/64/14/0/4/3/77", Context{}, holed(8192), blocks, Holed},
		"KVCM's":                            {"kv/17/tp0/3f", Context{}, facts(4096), blocks, Fine},
		"KVCM's, cut off":                   {"kv/17/tp0/3f", Context{}, facts(4000), blocks, Short},
		"KVCM's of several, with one":       {"kv/17/tp0/3f_a", Context{}, facts(4096), blocks, Partial},
		"KVCM's of several, with none":      {"kv/17/tp0/3f_a", Context{}, facts(4095), blocks, Short},
		"KVCM's of several":                 {"kv/17/tp0/3f_a", Context{}, facts(3 * 4096), blocks, Fine},
		"KVCM's, touched":                   {"kv/17/tp0/3f", Context{}, facts(0), Shape{}, Empty},
		"an object":                         {object + ".data", Context{}, facts(100), Shape{}, Fine},
		"an empty object":                   {object + ".data", Context{}, facts(0), Shape{}, Empty},
		"an object with a hole":             {object + ".data", Context{}, holed(8192), Shape{}, Holed},
		"a chunk":                           {chunk + ".data", Context{}, facts(100), Shape{}, Fine},
		"a chunk with a hole":               {chunk + ".data", Context{}, holed(8192), Shape{}, Fine},
		"an empty chunk":                    {chunk + ".data", Context{}, facts(0), Shape{}, Empty},
		"a chunk's temporary file":          {chunk + ".tmp", Context{}, facts(0), Shape{}, Orphaned},
		"a pair's data":                     {"66/63/" + pair, Context{}, other(facts(5000), Present), Shape{}, Fine},
		"nobody looked for the other":       {"66/63/" + pair, Context{}, facts(5000), Shape{}, Fine},
		"data without its side file":        {"66/63/" + pair, Context{}, other(facts(5000), Absent), Shape{}, DataAlone},
		"data that is all header":           {"66/63/" + pair, Context{}, other(facts(4096), Present), Shape{}, Short},
		"a pair's side file":                {"66/63/" + pair + ".metadata", Context{}, other(facts(4096), Present), Shape{}, Fine},
		"a side file without data":          {"66/63/" + pair + ".metadata", Context{}, other(facts(4096), Absent), Shape{}, SideAlone},
		"a short side file":                 {"66/63/" + pair + ".metadata", Context{}, other(facts(4095), Present), Shape{}, Short},
		"a long side file":                  {"66/63/" + pair + ".metadata", Context{}, other(facts(4097), Present), Shape{}, Long},
		"a block of UCM's":                  {"01/" + key, Context{}, facts(100), Shape{}, Fine},
		"an empty block of UCM's":           {"01/" + key, Context{}, facts(0), Shape{}, Empty},
		"Ds3fs's":                           {"m/01/" + key, ds3fs, other(facts(100), Absent), Shape{}, Fine},
		"Ds3fs's, named too early":          {"m/01/" + key, ds3fs, other(facts(100), Present), Shape{}, Reopened},
		"a replay's":                        {replay, Context{}, facts(65536), Shape{}, Fine},
		"a replay's, cut off":               {replay, Context{}, facts(65535), Shape{}, Short},
		"a replay's, too long":              {replay, Context{}, facts(65537), Shape{}, Long},
		"a page file, not yet used":         {"hf3fs_vllm_data_file_0", Context{}, facts(0), Shape{}, Fine},
		"a shard with holes":                {"dfs_shard_00.data", Context{}, holed(8192), Shape{}, Fine},
		"a log":                             {".kv3fs-sums/x.log", Context{}, facts(0), Shape{}, Fine},
		"an unknown file":                   {"x", Context{}, facts(0), Shape{}, Fine},
	} {
		t.Run(name, func(t *testing.T) {
			f := Classify(c.path, c.in)
			if got := f.Broken(c.is, c.shape, noon, 0); got != c.want {
				t.Errorf("%v (%+v), want %v", got, f, c.want)
			}
			if f.Owner == Unknown {
				return
			}
			// Whatever it looks like, it may be in a writer's hands for a while.
			for _, young := range []time.Duration{f.Grace - 1, 0, -time.Hour} {
				is := c.is
				is.Modified = noon.Add(-young)
				if got := f.Broken(is, c.shape, noon, 0); got != Fine {
					t.Errorf("after %v: %v", young, got)
				}
			}
			if got := f.Broken(c.is, c.shape, noon, 49*time.Hour); got != Fine {
				t.Errorf("within the caller's grace time: %v", got)
			}
		})
	}
}

func TestOtherOf(t *testing.T) {
	for path, want := range map[string]string{
		"66/63/" + pair: "66/63/" + pair + ".metadata", "66/63/" + pair + ".metadata": "66/63/" + pair, "66/63/" + pair + ".tmpabcdefgh": "",
		"m/01/" + key: "m/.temp/" + key, "01/" + key: ".temp/" + key, "m/.temp/" + key: "", chunk + ".data": "", "x": "",
	} {
		if got := Classify(path, Context{Above: DotTemp}).OtherOf(); got != want {
			t.Errorf("beside %s it looks for %q", path, got)
		}
	}
}

func TestPeerDirs(t *testing.T) {
	dir, _ := cutLast(rtpDir)
	for path, want := range map[string][]string{
		rtpDir + "/-5_77":                   {dir + "/0", dir + "/1", dir + "/2"},
		rtpDir + "/77_77":                   nil, // its length says whether it is whole
		"kv/17/tp0/3f_a":                    nil,
		object + ".data":                    nil,
		"a/b":                               nil,
		"chat/v2/1/no_lora/64/14/0/1/0/1_2": nil, // one rank
	} {
		if got := Classify(path, Context{}).PeerDirs(); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if got := Classify("chat/v2/1/no_lora/64/14/0/1000000/7/1_2", Context{}).PeerDirs(); len(got) != mostPeers {
		t.Errorf("of a million ranks, %d", len(got))
	}
}

func TestMayReap(t *testing.T) {
	kv, one := Classify("kv/17/tp0/3f_a", Context{}), Classify(rtpDir+"/-5_77", Context{})
	for is := range troubles {
		if got, want := kv.MayReap(is), is == Empty || is == Short; got != want {
			t.Errorf("KVCM's that is %v: %v", is, got)
		}
		if one.MayReap(is) != (is != Fine) || Classify("x", Context{}).MayReap(is) || Classify("hf3fs_vllm_data_file_0", Context{}).MayReap(is) {
			t.Errorf("%v", is)
		}
	}
}

func TestBlockBytes(t *testing.T) {
	at := func(name string, sizes ...int64) (all []Sibling) {
		for _, size := range sizes {
			all = append(all, Sibling{Classify(rtpDir+"/"+name, Context{}), size})
		}
		return all
	}
	join := func(a, b []Sibling) []Sibling { return append(a, b...) }
	for name, c := range map[string]struct {
		files []Sibling
		want  int64
		ok    bool
	}{
		"none":                              {nil, 0, false},
		"items of several alone":            {at("1_2", 65536, 65536, 32768), 0, false},
		"one":                               {at("1_1", 4096), 4096, true},
		"one cut off":                       {at("1_1", 4096, 4096, 100), 4096, true},
		"no majority":                       {at("1_1", 4096, 100), 0, false},
		"empty ones":                        {at("1_1", 0, 0), 0, false},
		"one, and items":                    {join(at("1_1", 4096), at("1_2", 65536, 8192, 100)), 4096, true},
		"one cut off, and items that tell":  {join(at("1_1", 1000), at("1_2", 65536, 65536, 3000)), 1000, false},
		"other files say nothing":           {[]Sibling{{Classify("01/"+key, Context{}), 4096}}, 0, false},
		"blocks with keys of no number too": {at(key, 4096), 4096, true},
	} {
		if got, ok := BlockBytes(c.files); ok != c.ok || ok && got != c.want {
			t.Errorf("%s: %d, %v", name, got, ok)
		}
	}
}

// FuzzBroken holds what Broken promises of every file and all facts.
func FuzzBroken(f *testing.F) {
	for _, rows := range table {
		for _, r := range rows {
			f.Add(r.path, byte(r.in.Above), int64(4096), int64(0), int64(time.Hour), int64(4096), 16, byte(Absent))
		}
	}
	f.Fuzz(func(t *testing.T, path string, above byte, sizeBytes, allocated, age, blockBytes int64, most int, other byte) {
		file := Classify(path, Context{Above: Marks(above)})
		is := Facts{sizeBytes, allocated, noon.Add(-time.Duration(age)), Presence(other), []Peer{{int64(most), noon}}}
		shape := Shape{blockBytes, most}
		got := file.Broken(is, shape, noon, 0)
		if got >= troubles || got != file.Broken(is, shape, noon, 0) || got.String() == "" {
			t.Fatalf("%q: %d", path, got)
		}
		if got == Fine {
			return
		}
		if file.Owner == Unknown || noon.Sub(is.Modified) < file.Grace || file.Delete == Never {
			t.Fatalf("%q is %v with %+v: %+v", path, got, is, file)
		}
		if (got == Orphaned) != file.Temp {
			t.Fatalf("%q is %v: %+v", path, got, file)
		}
		// A longer grace time never finds more.
		if file.Broken(is, shape, noon, time.Duration(1<<62)) != Fine && noon.Sub(is.Modified) < 1<<62 {
			t.Fatalf("%q is %v in spite of the grace time", path, got)
		}
	})
}
