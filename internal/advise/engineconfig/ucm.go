package engineconfig

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	"github.com/kv3fs/kv3fs/internal/ucmkeys"
)

// readUCM reads the YAML of UCM_CONFIG_FILE.
func readUCM(out *Config, content []byte, given Params, _ func(string) (string, bool)) error {
	values, err := decodeYAML(content)
	if err != nil {
		return err
	}
	top := newMapping(values, "", out)
	layerwise := top.ucmFlag("use_layerwise", false)
	top.ucmFlag("enable_event_sync", true)
	if top.ucmFlag("load_only_first_rank", false) {
		top.problem(Failure, "load_only_first_rank", "is true, which Ds3fs and Posix do not support", "write load_only_first_rank: false")
	}
	top.ucmFlag("enable_metrics", false)
	for _, key := range []string{"metrics_config_path", "hit_ratio", "ucm_connectors"} {
		top.has(key)
	}
	top.unknown(about3FS)

	connectors, _ := top.values["ucm_connectors"].([]any)
	if len(connectors) != 1 {
		top.problem(Failure, "ucm_connectors", fmt.Sprintf("has %d connectors", len(connectors)), "write a list of exactly one")
		out.Need, err = ucmNeed(given)
		return err
	}
	first, _ := connectors[0].(map[string]any)
	connector := newMapping(first, "ucm_connectors[0].", out)
	connector.choice("ucm_connector_name", "UcmPipelineStore")
	if !connector.has("ucm_connector_name") {
		connector.problem(Failure, "ucm_connector_name", "is missing", "write UcmPipelineStore")
	}
	m := connector.child("ucm_connector_config")
	connector.unknown(all)
	return readPipeline(m, layerwise, given)
}

const ucmPipeline = "Cache|Ds3fs"

func readPipeline(m *mapping, layerwise bool, p Params) error {
	out := m.out
	pipeline := m.ucmText("store_pipeline")
	rings := pipeline == ucmPipeline
	switch {
	case rings:
		out.add(Note, "", "UCM's Ds3fs store builds and runs only in versions of January 2026 (commits 269b8afb to before cd4239ff); v0.3.0, v0.4.0 and v0.5.0rc1 are not among them", "with another version use store_pipeline: Cache|Posix on a directory of the mount")
	case pipeline == "":
		m.problem(Failure, "store_pipeline", "is missing", "write "+ucmPipeline)
	case strings.HasSuffix(pipeline, "Posix"):
		m.problem(Note, "store_pipeline", fmt.Sprintf("%.80q uses ordinary file calls, not rings; Ds3fs, which uses them, is in few versions of UCM", pipeline), "")
	case strings.EqualFold(pipeline, ucmPipeline):
		m.problem(Failure, "store_pipeline", fmt.Sprintf("%.80q has different case from UCM's name", pipeline), "write "+ucmPipeline)
	default:
		m.problem(Failure, "store_pipeline", fmt.Sprintf("%.80q does not store on a 3FS", pipeline), "write "+ucmPipeline)
	}
	readUCMBackends(m, rings)

	p.Clients = int(m.ucmNumber("stream_number", ucmStreams))
	entries := m.ucmNumber("ior_entries", 1)
	if depth := m.ucmNumber("ior_depth", 1); depth > 1 {
		m.problem(Failure, "ior_depth", fmt.Sprintf("is %d, but a worker has only one request in flight, so the ring would wait forever for more", depth), "write 1")
	} else if entries > 1 {
		m.problem(Note, "ior_entries", "is more than 1, but a worker has only one request in flight", "")
	}
	m.ucmFlag("io_direct", true)
	m.ucmNumber("timeout_ms", 30000)
	m.ucmNumber("cache_stream_number", 4)
	m.ucmNumber("waiting_queue_depth", 8192)
	m.ucmNumber("running_queue_depth", 524288)
	m.ucmNumber("buffer_size", 64*gib)
	shared := m.ucmFlag("share_buffer_enable", p.Model.MLA())
	cacheGB := cmp.Or(m.ucmNumber("cache_buffer_capacity_gb", 0), ucmSharedCacheGB)
	m.has("store_health")
	if strings.HasSuffix(pipeline, "Posix") {
		readUCMCollection(m)
	}
	for _, key := range ucmkeys.Keys() {
		if !m.known[key] {
			m.ucmCheck(key)
		}
	}
	if rings {
		ucmIgnored(m)
	}
	if layerwise && rings {
		out.add(Warning, "use_layerwise", "lets Ds3fs give a file its final name before all its layers are written", "write use_layerwise: false")
	}
	m.unknown(func(key string) bool { return rings && about3FS(key) })

	need, err := ucmNeed(p)
	if err != nil {
		return err
	}
	block := need.ShmBytesPerRank / int64(p.Clients)
	if holds := cacheGB * gib / block; holds < ucmFewestBlocks && need.Assumed == "" && !layerwise {
		least := (ucmFewestBlocks*block-1)/gib + 1
		m.problem(Failure, "cache_buffer_capacity_gb", fmt.Sprintf("is %d, which holds %d blocks of this model; UCM refuses a cache of fewer than %d", cacheGB, holds, ucmFewestBlocks), fmt.Sprintf("write %d or more", least))
	}
	need.ShmBytesShared = 0
	if shared {
		need.ShmBytesShared = cacheGB * gib
	}
	if !rings {
		need = need.withoutRings()
		need.Packages = []Package{{PythonModule, "ucm", "PLATFORM=cuda pip install uc-manager", ""}}
	}
	out.Need = need
	return nil
}

func readUCMBackends(m *mapping, rings bool) {
	out := m.out
	text := m.ucmText("storage_backends")
	if text == "" {
		m.problem(Failure, "storage_backends", "is missing", "write the mount point of the 3FS")
		return
	}
	backends := strings.Split(text, ":")
	for _, b := range backends {
		checkBase(m, "storage_backends", b, "")
		out.BasePaths = append(out.BasePaths, path.Clean(b))
	}
	if rings {
		checkMount(m, "storage_backends", backends[0], false)
		out.Mount, out.BasePaths = out.BasePaths[0], out.BasePaths[:1]
		if len(backends) > 1 {
			m.problem(Warning, "storage_backends", "has several entries; Ds3fs uses the first", "write the mount point alone")
		}
	}
}

// readUCMCollection reads whether the Posix store deletes files.
func readUCMCollection(m *mapping) {
	const key = "posix_capacity_gb"
	const cure = "write how many GB the files may take, in the configuration of one instance only"
	capacity := m.ucmNumber(key, 0)
	switch collects := m.ucmFlag("posix_gc_enable", true); {
	case capacity > 0 && !collects:
		m.problem(Warning, key, "is set, but posix_gc_enable is false: Posix deletes nothing", "remove posix_gc_enable in one instance of those that share the directory")
	case capacity == 0 && collects && m.has("posix_gc_enable"):
		m.problem(Warning, "posix_gc_enable", "is true, but Posix deletes only with a "+key+" above 0, and there is none: the disk fills", cure)
	case capacity == 0:
		m.problem(Note, key, "is 0, with which Posix deletes nothing", cure)
	}
}

// ucmIgnored reports keys that Ds3fs does not read, although UCM's documents list them
// for Ds3fs or another store has them.
func ucmIgnored(m *mapping) {
	const front = "is read only by the Cache in front, not by Ds3fs, although UCM's documents list it there"
	m.ignored(Note, "waiting_queue_depth", front, "stream_number limits Ds3fs's concurrency")
	m.ignored(Note, "running_queue_depth", front, "stream_number limits Ds3fs's concurrency")
	m.ignored(Warning, "buffer_size", "is in UCM's documents, but neither Cache nor Ds3fs reads it", "write cache_buffer_capacity_gb")
	for _, key := range []string{"device_id", "tensor_size", "shard_size", "block_size", "unique_id"} {
		m.ignored(Warning, key, "is set by UCM itself", "remove it")
	}
	reported := 0
	for key := range m.values {
		if (strings.HasPrefix(key, "posix_") || key == "data_dir_shard_bytes") && reported < maxUnknown {
			reported++
			m.ignored(Warning, clip(key), "belongs to the Posix store; Ds3fs does not read it", "remove it")
			m.known[key] = true
		}
	}
}
