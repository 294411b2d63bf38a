package classify

import (
	"strings"
	"testing"
)

const (
	key    = "0123456789abcdef0123456789abcdef"
	digest = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
	chunk  = "meta-llama-SEP-Llama-3-8B@2@1@-1f3a@half"
	object = "meta-llama-SEP-Llama-3-8B@0x02010201@0@" + digest
	pair   = "m%402%401%4017ac16e7b5ac22%40half.kvcache.safetensors" // 6663700000000034 in decimal digits
	rtpDir = "chat/v2/1234/no_lora/64/14/0/4/3"
)

// row is what is expected of a path.
type row struct {
	path string
	in   Context
	want File
}

// The table has every layout of section 15 of clients.md, quoted, and what kv3fs's own programs
// leave.
var table = map[string][]row{
	"`*@N@N@hex@dtype[...].data` | LM-R / LM-FS | file | yes | mtime": {
		{chunk + ".data", Context{}, File{Owner: LMCache, Delete: AnyTime, Grace: FinalGrace, Forget: true, Entry: chunk + ".data",
			Model: "meta-llama/Llama-3-8B", WorldSize: 2, Rank: 1, DType: "half", Key: "-1f3a", Blocks: 1}},
		{"a/b/" + chunk + "@7@user%x.data", Context{}, File{Owner: LMCache, Delete: AnyTime, Grace: FinalGrace, Forget: true, Entry: "a/b/" + chunk + "@7@user%x.data", Root: "a/b",
			Model: "meta-llama/Llama-3-8B", WorldSize: 2, Rank: 1, DType: "half", Key: "-1f3a", Blocks: 1}},
	},
	"same stem `.tmp` or under the configured tmp dir | LM temp | - | after >= 10 min idle | mtime": {
		{chunk + ".tmp", Context{}, File{Owner: LMCache, Temp: true, Delete: WhenIdle, Grace: TempGrace, Entry: chunk + ".tmp",
			Model: "meta-llama/Llama-3-8B", WorldSize: 2, Rank: 1, DType: "half", Key: "-1f3a", Blocks: 1}},
		{"base/tmp/" + chunk + ".data", Context{Above: LMCacheData}, File{Owner: LMCache, Temp: true, Delete: WhenIdle, Grace: TempGrace, Entry: "base/tmp/" + chunk + ".data", Root: "base/tmp",
			Model: "meta-llama/Llama-3-8B", WorldSize: 2, Rank: 1, DType: "half", Key: "-1f3a", Blocks: 1}},
	},
	"`*@0x????????@...@hex[...].data` | LM-N, L2 fs, fs_native | file | yes | mtime": {
		{"00/11/" + object + ".data", Context{}, File{Owner: LMCacheObject, Delete: AnyTime, Grace: DirectGrace, Forget: true, Entry: "00/11/" + object + ".data",
			Model: "meta-llama/Llama-3-8B", WorldSize: 2, Rank: 1, Key: digest, Blocks: 1}},
		{object + "@salt.tmp", Context{}, File{Owner: LMCacheObject, Temp: true, Delete: WhenIdle, Grace: TempGrace, Entry: object + "@salt.tmp",
			Model: "meta-llama/Llama-3-8B", WorldSize: 2, Rank: 1, Key: digest, Blocks: 1}},
	},
	"`cc/cc/*%40*.kvcache.safetensors[.metadata]` (or `.weka1`) | LM-GDS | pair | side file first | mtime of data": {
		{"66/63/" + pair, Context{}, File{Owner: GDS, Part: Data, Delete: SideFirst, Grace: FinalGrace, Forget: true, Entry: "66/63/" + pair,
			Model: "m", WorldSize: 2, Rank: 1, DType: "half", Key: "17ac16e7b5ac22", Blocks: 1}},
		{"d/66/63/" + pair + ".metadata", Context{}, File{Owner: GDS, Part: Side, Delete: SideFirst, Grace: FinalGrace, Forget: true, Entry: "d/66/63/" + pair, Root: "d",
			Model: "m", WorldSize: 2, Rank: 1, DType: "half", Key: "17ac16e7b5ac22", Blocks: 1}},
	},
	"`*.tmp` + 8 characters below the above | LM-GDS temp | - | after >= 10 min | mtime": {
		{"66/63/" + pair + ".metadata.tmpA1b2C3d4", Context{}, File{Owner: GDS, Temp: true, Delete: WhenIdle, Grace: TempGrace, Entry: "66/63/" + pair + ".metadata.tmpA1b2C3d4",
			Model: "m", WorldSize: 2, Rank: 1, DType: "half", Key: "17ac16e7b5ac22", Blocks: 1}},
	},
	"`hf3fs_vllm_data_file_<n>` | vLLM | page | never while running | -": {
		{"p/hf3fs_vllm_data_file_3", Context{}, File{Owner: VLLM, Age: NoAge, Delete: Never, Grace: FinalGrace, Entry: "p/hf3fs_vllm_data_file_3", Root: "p", Rank: 3}},
	},
	"`<prefix>.<n>.bin[.<pool>]` | SGL | page | never while running | -": {
		{"hicache.0.bin", Context{}, File{Owner: SGLang, Age: NoAge, Delete: Never, Grace: FinalGrace, Entry: "hicache.0.bin"}},
		{"data/hicache.12.bin.mamba", Context{}, File{Owner: SGLang, Age: NoAge, Delete: Never, Grace: FinalGrace, Entry: "data/hicache.12.bin.mamba", Root: "data", Rank: 12}},
	},
	"`.temp/<32 hex>` | UCM-D temp | - | after timeout + margin | mtime": {
		{"m/.temp/" + key, Context{}, File{Owner: Ds3fs, Temp: true, Delete: WhenIdle, Grace: TempGrace, Entry: "m/.temp/" + key, Root: "m", Key: key, Blocks: 1}},
	},
	"`<2 hex>/<32 hex>` | UCM-D | file | yes | mtime (write)": {
		{"m/01/" + key, Context{Above: DotTemp}, File{Owner: Ds3fs, Delete: AnyTime, Grace: FinalGrace, Forget: true, Entry: "m/01/" + key, Root: "m", Key: key, Blocks: 1}},
		{"01/" + key, Context{Stated: Ds3fs}, File{Owner: Ds3fs, Delete: AnyTime, Grace: FinalGrace, Forget: true, Entry: "01/" + key, Key: key, Blocks: 1}},
	},
	"`<0-5 hex>/<32 hex>[.tmp]` | UCM-P | file | yes (not `.tmp` when fresh) | mtime (last use)": {
		{"01/" + key, Context{}, File{Owner: Posix, Age: ByUse, Delete: AnyTime, Grace: FinalGrace, Forget: true, Entry: "01/" + key, Key: key, Blocks: 1}},
		{"a/data/" + key, Context{}, File{Owner: Posix, Age: ByUse, Delete: AnyTime, Grace: FinalGrace, Forget: true, Entry: "a/data/" + key, Root: "a", Key: key, Blocks: 1}},
		{"01234/" + key + ".tmp", Context{}, File{Owner: Posix, Temp: true, Delete: WhenIdle, Grace: TempGrace, Entry: "01234/" + key + ".tmp", Key: key, Blocks: 1}},
	},
	"`.../v2/<n>/<...>/<i64>_<i64>` | RTP-D | file | yes, suffix first | mtime": {
		{rtpDir + "/-5_77", Context{}, File{Owner: RTPLLM, Delete: SuffixFirst, Grace: DirectGrace, Forget: true, Entry: rtpDir + "/-5_77", Root: rtpDir,
			Model: "1234", WorldSize: 4, Rank: 3, DType: "14", Key: "-5", LastKey: "77", Blocks: 2}},
		{"x/" + rtpDir + "/9_9", Context{}, File{Owner: RTPLLM, Delete: SuffixFirst, Grace: DirectGrace, Forget: true, Entry: "x/" + rtpDir + "/9_9", Root: "x/" + rtpDir,
			Model: "1234", WorldSize: 4, Rank: 3, DType: "14", Key: "9", LastKey: "9", Blocks: 1}},
		{strings.Replace(rtpDir, "/v2", "", 1) + "/77", Context{}, File{Owner: RTPLLMOld, Delete: AnyTime, Grace: DirectGrace, Entry: strings.Replace(rtpDir, "/v2", "", 1) + "/77", Root: strings.Replace(rtpDir, "/v2", "", 1),
			Model: "1234", WorldSize: 4, Rank: 3, DType: "14", LastKey: "77", Blocks: 1}},
	},
	"`<instance>/<spec>/<hex>[_<hex>]` | KVCM | 1..n keys | via API | service": {
		{"kv/17/tp1_F0/3f", Context{}, File{Owner: KVCM, Delete: ByService, Grace: DirectGrace, Forget: true, Entry: "kv/17/tp1_F0/3f", Root: "kv/17/tp1_F0", Rank: 1, Key: "3f", Blocks: 1}},
		{"17/full/3f_a0b1", Context{Stated: KVCM}, File{Owner: KVCM, Delete: ByService, Grace: DirectGrace, Forget: true, Entry: "17/full/3f_a0b1", Root: "17/full", Key: "3f", Blocks: 2}},
	},
	"`dfs_shard_<NN>.data` | MC | range | never | master": {
		{"dfs_shard_07.data", Context{}, File{Owner: Mooncake, Age: NoAge, Delete: Never, Grace: FinalGrace, Entry: "dfs_shard_07.data"}},
		{"a/dfs_shard_123.data", Context{}, File{Owner: Mooncake, Age: NoAge, Delete: Never, Grace: FinalGrace, Entry: "a/dfs_shard_123.data", Root: "a"}},
	},
	"kv3fs's own": {
		{"d/segment-000012", Context{}, File{Owner: Segments, Age: NoAge, Delete: Never, Grace: FinalGrace, Entry: "d/segment-000012", Root: "d"}},
		{"d/.kv3fs-sums/boot-0011aabb.log", Context{}, File{Owner: Checksums, Age: NoAge, Delete: Never, Grace: FinalGrace, Entry: "d/.kv3fs-sums/boot-0011aabb.log", Root: "d"}},
		{"d/.kv3fs-items/boot-0011aabb.log", Context{}, File{Owner: Checksums, Age: NoAge, Delete: Never, Grace: FinalGrace, Entry: "d/.kv3fs-items/boot-0011aabb.log", Root: "d"}},
		{".kv3fs-temp/" + key + ".0a1b2c3d-17", Context{}, File{Owner: BlockStore, Temp: true, Delete: WhenIdle, Grace: TempGrace, Entry: ".kv3fs-temp/" + key + ".0a1b2c3d-17", Key: key}},
		{"m/drafts/" + key + ".0a1b2c3d-17", Context{}, File{Owner: BlockStore, Temp: true, Delete: WhenIdle, Grace: TempGrace, Entry: "m/drafts/" + key + ".0a1b2c3d-17", Root: "m/drafts", Key: key, Blocks: 1}},
		{"kv/" + key + ".data.kv3fs-damaged-1732470000", Context{}, File{Owner: BlockStore, Delete: AnyTime, Grace: FinalGrace, Entry: "kv/" + key + ".data.kv3fs-damaged-1732470000", Root: "kv"}},
		{".kv3fs-quarantine/" + key + ".1732470000000000000", Context{}, File{Owner: BlockStore, Delete: AnyTime, Grace: FinalGrace, Entry: ".kv3fs-quarantine/" + key + ".1732470000000000000", Key: key}},
		{"d/.kv3fs-spare/" + key, Context{}, File{Owner: BlockStore, Delete: AnyTime, Grace: FinalGrace, Forget: true, Entry: "d/.kv3fs-spare/" + key, Root: "d"}},
		{"kv3fs-replay/1f/000000000000031f-r2-65536", Context{}, File{Owner: Replay, Delete: AnyTime, Grace: FinalGrace, Entry: "kv3fs-replay/1f/000000000000031f-r2-65536", Root: "kv3fs-replay", Rank: 2, Key: "000000000000031f", Blocks: 1, sizeBytes: 65536}},
		{"r/tmp/0011aabb-4026531836-17-99/7", Context{}, File{Owner: Replay, Temp: true, Delete: WhenIdle, Grace: ScratchGrace, Entry: "r/tmp/0011aabb-4026531836-17-99/7", Root: "r"}},
		{"s/kv3fs-bench-1234/read-0", Context{}, File{Owner: Bench, Temp: true, Delete: WhenIdle, Grace: ScratchGrace, Entry: "s/kv3fs-bench-1234/read-0", Root: "s/kv3fs-bench-1234"}},
		{".kv3fs/hosts/h/index", Context{}, File{Owner: Daemon, Age: NoAge, Delete: Never, Grace: FinalGrace, Entry: ".kv3fs/hosts/h/index"}},
		{"a/.kv3fs-keep/lease-000000000001", Context{}, File{Owner: Daemon, Age: NoAge, Delete: Never, Grace: FinalGrace, Entry: "a/.kv3fs-keep/lease-000000000001", Root: "a"}},
	},
	"unknown": {
		{"notes.txt", Context{}, File{}},
		{"README", Context{}, File{}},
	},
}

func TestClassify(t *testing.T) {
	for quoted, rows := range table {
		for _, r := range rows {
			if got := Classify(r.path, r.in); got != r.want {
				t.Errorf("%s\n%s in %+v is\n%+v, want\n%+v", quoted, r.path, r.in, got, r.want)
			}
		}
	}
}
