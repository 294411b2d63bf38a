package classify

import (
	"slices"
	"strings"
	"testing"
)

// FuzzClassify holds what package classify promises of every path.
func FuzzClassify(f *testing.F) {
	for _, rows := range table {
		for _, r := range rows {
			f.Add(r.path, byte(r.in.Here), byte(r.in.Above), byte(r.in.Stated), r.in.Temporaries)
		}
	}
	f.Add("a\n/\xff\xfe/"+strings.Repeat("f", 255), byte(0), byte(0), byte(0), false)
	f.Fuzz(func(t *testing.T, path string, here, above, stated byte, temporaries bool) {
		in := Context{Here: Marks(here), Above: Marks(above), Stated: Owner(stated), Temporaries: temporaries}
		is := Classify(path, in)
		checkPromises(t, path, in, is)
		_ = MarkOf(path)
	})
}

func checkPromises(t *testing.T, path string, in Context, is File) {
	t.Helper()
	if again := Classify(path, in); again != is {
		t.Fatalf("%q is %+v and then %+v", path, is, again)
	}
	if is.Owner == Unknown {
		if is != (File{}) || is.Parts() != nil {
			t.Fatalf("%q is unknown, and %+v", path, is)
		}
		return
	}
	parts := is.Parts()
	switch {
	case is.Owner >= owners:
		t.Fatalf("%q has the owner %d", path, is.Owner)
	case is.Grace < FinalGrace, is.Temp && is.Grace < TempGrace:
		t.Fatalf("%q is left alone for %v: %+v", path, is.Grace, is)
	case is.Temp != (is.Delete == WhenIdle), is.Delete == AskOperator, (is.Age == NoAge) != (is.Delete == Never):
		t.Fatalf("%q is removed in a way that does not suit it: %+v", path, is)
	case is.Forget && !(is.Delete.Evictable() || is.Delete == ByService):
		t.Fatalf("%q is recorded and never removed: %+v", path, is)
	case is.Entry == "" || !strings.HasPrefix(path, is.Entry) || is.Root != "" && !strings.HasPrefix(path, is.Root+"/"):
		t.Fatalf("%q is of %q below %q", path, is.Entry, is.Root)
	case is.Rank < 0 || is.WorldSize < 0 || is.WorldSize > 0 && is.Rank >= is.WorldSize && is.Owner != LMCacheObject:
		t.Fatalf("%q is rank %d of %d", path, is.Rank, is.WorldSize)
	case !slices.Contains(parts, path) || parts[len(parts)-1] != is.Entry || len(slices.Compact(slices.Sorted(slices.Values(parts)))) != len(parts):
		t.Fatalf("%q has the parts %q", path, parts)
	}
	for i, part := range parts {
		other := Classify(part, in)
		if want := map[bool]Part{true: Data, false: Side}[i == len(parts)-1]; other.Part != want {
			t.Fatalf("%q is part %d of %q", part, other.Part, path)
		}
		if other.Part = is.Part; other != is {
			t.Fatalf("%q is %+v, and its part %q %+v", path, is, part, other)
		}
	}
	// A layout may lie at any depth. Where there are too few names for one, deeper there may be more.
	const here, below = "kv/", "models/"
	first, deeper := Classify(here+path, in), Classify(here+below+path, in)
	if first.Owner == Unknown {
		t.Fatalf("%q is %+v, and unknown in a directory", path, is)
	}
	deeper.Entry = here + strings.TrimPrefix(deeper.Entry, here+below)
	if root := strings.TrimPrefix(deeper.Root, here+strings.TrimSuffix(below, "/")); root != deeper.Root {
		deeper.Root = strings.TrimSuffix(here+strings.TrimPrefix(root, "/"), "/")
	}
	if deeper != first {
		t.Fatalf("%q is %+v, and in a directory %+v", here+path, first, deeper)
	}
}

// Every owner, and every row of the table in the specification, is tried.
func TestEveryOwnerIsTried(t *testing.T) {
	tried := map[Owner]bool{}
	for quoted, rows := range table {
		if len(rows) == 0 {
			t.Errorf("nothing tries %s", quoted)
		}
		for _, r := range rows {
			tried[r.want.Owner] = true
			checkPromises(t, r.path, r.in, Classify(r.path, r.in))
		}
	}
	for _, o := range Owners() {
		if !tried[o] && o != Pages { // TestByHead does
			t.Errorf("nothing tries a file of %v", o)
		}
		if back, ok := ParseOwner(o.String()); !ok || back != o {
			t.Errorf("%v is read as %v", o, back)
		}
	}
	const specified = 13 // rows of clients.md, section 15
	if len(table) != specified+2 {
		t.Errorf("the table has %d rows", len(table))
	}
}

// A page file has a name that its users choose, and is known by its first bytes.
func TestByHead(t *testing.T) {
	const path = "m/pages"
	for head, want := range map[string]Owner{"kv3fsPGF": Pages, "kv3fsPGF\x01": Pages, "kv3fsPG": Unknown, "": Unknown, "xkv3fsPGF": Unknown} {
		f := ByHead(path, []byte(head))
		if f.Owner != want || f.Owner == Pages && (f.Entry != path || f.Root != "m" || f.Delete != Never || f.Age != NoAge || f.Grace == 0) {
			t.Errorf("%q begins a file of %v: %+v", head, f.Owner, f)
		}
	}
	if f := ByHead("../pages", []byte("kv3fsPGF")); f != (File{}) {
		t.Errorf("what is no path is %+v", f)
	}
}

// What only resembles a layout is unknown.
func TestWhatOnlyResemblesALayout(t *testing.T) {
	for _, path := range []string{
		"", "/", "a//b", "/a", "a/", "./a", "a/../b", "a\x00b/01/" + key, "..", "m/01//" + key,
		"x.data", "a@b.data", "m@2@2@1f@half.data", "m@2@01@1f@half.data", "m@2@1@1F@half.data", "m@2@1@1f@float99.data",
		"m@2@1@1f@half.data.bak", "m@2@1@1f@half.tmp2", "notes.tmp", "m@0x0201020@0@" + digest + ".data", "m@0x02010201@00@" + digest + ".data",
		"66/64/" + pair, "63/66/" + pair, pair, "66/63/" + pair + ".meta", "66/63/" + pair + ".tmp1234567", "66/63/" + strings.ToUpper(pair),
		"66/63/m%402%401%4017ac16e7b5ac22%40half.safetensors",
		"hf3fs_vllm_data_file_", "hf3fs_vllm_data_file_01", "hf3fs_vllm_data_file_x", "hf3fs_vllm_data_file_1234567", "hf3fs_vllm_data_file_18446744073709551616", "hf3fs_vllm_data_file_1.bak",
		"model.bin", "pytorch_model.00001.bin", "a.0.bin.x-y", "a.0.bin.", "a.-1.bin", "a.0.bins",
		"02/" + key, "012345/" + key, "0123456/" + key + ".tmp", key, key + ".tmp", ".temp2/" + key, "AB/" + strings.ToUpper(key), "01/" + key[1:], "01/" + key + "0",
		"01/" + key + ".bak", "data/" + key[:31] + "g",
		rtpDir + "/5", rtpDir + "/05_6", rtpDir + "/5_6_7", rtpDir + "/5_", strings.Replace(rtpDir, "/4/3", "/4/4", 1) + "/5_6", strings.Replace(rtpDir, "no_lora", "lora", 1) + "/5_6",
		strings.TrimPrefix(rtpDir, "chat/") + "/5_6", rtpDir + "/9223372036854775808_1",
		"17/full/3f", "kv/17/tpx/3f", "tp0/3f", "kv/17/tp0/3F", "kv/17/tp0/03f", "kv/17/tp0/3f_", "kv/17/tp0/3f_0a", "kv/17/tp0/11112222333344445",
		"dfs_shard_1.data", "dfs_shard_.data", "dfs_shard_0x.data", "dfs_shard_01.dat",
		"segment-1", "segment-0000001", "segments.db", "segment-", "segment-00000a",
		".kv3fs-temp/x", ".kv3fs-quarantine/" + key, "kv3fs-bench-x/a", "kv3fs-benchmarks/a", ".kv3fs-doctor-x", "my.kv3fs/a",
		"1f/000000000000031f-r0", "1e/000000000000031f-r0-65536", "1f/000000000000031f-r0-0", "1f/000000000000031f-r00-1", "tmp/0011aabb-1-2/7", "tmp/0011aabb-1-2-3-4/7",
		"a\nb", "\xff\xfe", strings.Repeat("a", 255), strings.Repeat("@", 255) + ".data", strings.Repeat("%", 200) + ".weka1",
	} {
		if f := Classify(path, Context{}); f.Owner != Unknown || f != (File{}) {
			t.Errorf("%q is a file of %v: %+v", path, f.Owner, f)
		}
	}
}

// What lies around a file decides where its name does not.
func TestContextsDecide(t *testing.T) {
	chunk := chunk + ".data"
	for _, c := range []struct {
		path string
		in   Context
		want Owner
		temp bool
	}{
		{"m/01/" + key, Context{}, Posix, false},
		{"m/01/" + key, Context{Above: DotTemp}, Ds3fs, false},
		{"m/01/" + key, Context{Above: DotTemp, Stated: Posix}, Posix, false},
		{"m/01/" + key, Context{Stated: Ds3fs}, Ds3fs, false},
		{"m/012/" + key, Context{Above: DotTemp, Stated: Ds3fs}, Posix, false},
		{"m/01/" + key + ".tmp", Context{Above: DotTemp}, Posix, true},
		{"m/tmp/" + chunk, Context{}, LMCache, false},
		{"m/tmp/" + chunk, Context{Above: LMCacheData}, LMCache, true},
		{"m/base/" + chunk, Context{Above: LMCacheData}, LMCache, false},
		{"m/drafts/" + chunk, Context{Temporaries: true}, LMCache, true},
		{"m/drafts/" + object + ".data", Context{Temporaries: true}, LMCacheObject, true},
		{"17/full/3f", Context{Here: OwnLogs}, KVCM, false},
		{"17/full/" + key, Context{Here: OwnLogs}, KVCM, false},
		{"17/0/" + key, Context{Here: OwnLogs}, KVCM, false},
		{"17/0/" + key, Context{Above: OwnLogs}, Posix, false},
		{"notes/3f", Context{Here: OwnLogs}, Unknown, false},
	} {
		if f := Classify(c.path, c.in); f.Owner != c.want || f.Temp != c.temp {
			t.Errorf("%s in %+v is a file of %v, temporary: %v", c.path, c.in, f.Owner, f.Temp)
		}
	}
	for name, want := range map[string]Marks{
		".temp": DotTemp, ".kv3fs-sums": OwnLogs, ".kv3fs-sums-0011223344556677": OwnLogs, ".kv3fs-items": OwnLogs, chunk: LMCacheData, object + ".data": LMCacheData,
		"01": 0, "tmp": 0, ".kv3fs": 0, "a.data": 0, "dfs_shard_00.data": 0,
	} {
		if got := MarkOf(name); got != want {
			t.Errorf("%s is the mark %d", name, got)
		}
	}
	for _, name := range MarkNames() {
		if MarkOf(name) == 0 {
			t.Errorf("%s is no mark", name)
		}
	}
}
