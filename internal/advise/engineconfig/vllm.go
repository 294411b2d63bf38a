package engineconfig

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/kv3fs/kv3fs/internal/advise/model"
	"github.com/kv3fs/kv3fs/internal/shellwords"
)

// readVLLM reads the value of --kv-transfer-config, by itself or in a command line.
func readVLLM(out *Config, content []byte, p Params, env func(string) (string, bool)) error {
	retiredVLLM(out, env)
	text := bytes.TrimSpace(content)
	if !bytes.HasPrefix(text, []byte("{")) {
		words, err := shellwords.Split(string(content))
		if err != nil {
			return err
		}
		value := lastFlag(words, "--kv-transfer-config", "--kv_transfer_config")
		if value == "" {
			return fmt.Errorf("is neither the JSON of --kv-transfer-config nor a command line that has that flag")
		}
		text = []byte(value)
		out.Problems = append(out.Problems, Misnamed(out.Engine, slices.Collect(maps.Keys(shellwords.Assignments(words))))...)
		p = vllmParams(words, p)
		out.TP = p.TP
	}
	values, err := decodeJSON(text)
	if err != nil {
		return fmt.Errorf("--kv-transfer-config %w", err)
	}
	out.MakesPaths = true
	return readHF3FSConnector(hf3fsConnector(newMapping(values, "", out)), p)
}

// vllmParams completes p with what a command line says about the size of a page.
func vllmParams(words []string, p Params) Params {
	count := func(given int, names ...string) int {
		if given != 0 {
			return given
		}
		n, err := strconv.Atoi(lastFlag(words, names...))
		if err != nil || n < 1 || n > maxCount {
			return 0
		}
		return n
	}
	p.TP = count(p.TP, "--tensor-parallel-size", "-tp", "--tensor_parallel_size")
	p.BlockTokens = count(p.BlockTokens, "--block-size", "--block_size")
	name := lastFlag(words, "--model")
	for i, w := range words {
		if w == "serve" && i+1 < len(words) && name == "" {
			name = words[i+1]
		}
	}
	if p.Model == (model.Shape{}) {
		p.Model, _ = model.Lookup(name) // an unknown model counts as none
	}
	if p.Model != (model.Shape{}) && p.Model.DType == "" && strings.HasPrefix(lastFlag(words, "--kv-cache-dtype"), "fp8") {
		p.Model.DType = model.FP8
	}
	return p
}

// hf3fsConnector returns the configuration of the 3FS connector, which may be one of
// several in a MultiConnector.
func hf3fsConnector(m *mapping) *mapping {
	if m.values["kv_connector"] != "MultiConnector" {
		return m
	}
	list, _ := m.child("kv_connector_extra_config").values["connectors"].([]any)
	for i, item := range list {
		values, _ := item.(map[string]any)
		if values["kv_connector"] == vllmConnector {
			return newMapping(values, fmt.Sprintf("connectors[%d].", i), m.out)
		}
	}
	return m
}

const vllmConnector = "HF3FSKVConnector"

func readHF3FSConnector(m *mapping, p Params) error {
	out := m.out
	switch name := m.text("kv_connector"); {
	case name == vllmConnector:
	case strings.HasPrefix(name, "LMCache"):
		m.problem(Failure, "kv_connector", name+" leaves storage to LMCache", "check LMCache's own file as engine lmcache")
	case name == "UCMConnector":
		m.problem(Failure, "kv_connector", name+" leaves storage to UCM", "check UCM_CONFIG_FILE as engine ucm")
	default:
		m.problem(Failure, "kv_connector", fmt.Sprintf("%.80q is not vLLM's 3FS connector", name), "write "+vllmConnector)
	}
	if !m.has("kv_role") {
		m.problem(Failure, "kv_role", "is missing; vLLM does not start", "write kv_both")
	}
	m.choice("kv_role", "kv_both", "kv_producer", "kv_consumer")
	for _, key := range []string{"kv_rank", "kv_parallel_size", "kv_ip", "kv_port", "engine_id", "kv_buffer_device", "kv_buffer_size",
		"kv_connector_module_path", "kv_load_failure_policy", "enable_permute_local_kv"} {
		m.has(key)
	}
	extra := m.child("kv_connector_extra_config")

	const fallback = "/vllm-workspace/mnt/hf3fs"
	dir := extra.text("hf3fs_storage_path")
	if dir == "" {
		extra.problem(Warning, "hf3fs_storage_path", "is missing, so vLLM stores in "+fallback, "write a directory on the 3FS mount")
		dir = fallback
	}
	checkBase(extra, "hf3fs_storage_path", dir, "")
	out.BasePaths = []string{path.Clean(dir)}

	p.FileBytes = extra.number("hf3fs_file_size", bounds{fallback: vllmFileBytes, min: 1, max: math.MaxInt64})
	if !extra.has("hf3fs_file_size") {
		extra.problem(Note, "hf3fs_file_size", "is missing, so a rank keeps at most 1 GiB", "write how many bytes a rank may use")
	}
	p.Clients = int(extra.number("hf3fs_client_numjobs", bounds{fallback: vllmJobs, min: 1, max: 1024}))
	if n := extra.number("hf3fs_max_device_buffer_count", bounds{fallback: 128, min: 1, max: maxCount}); n < int64(p.Clients)*vllmEntries && extra.has("hf3fs_max_device_buffer_count") {
		extra.problem(Note, "hf3fs_max_device_buffer_count", fmt.Sprintf("is %d; vLLM raises it to 8 for each of the %d jobs", n, p.Clients), "")
	}
	if url := extra.text("hf3fs_metadata_server_url"); url == vllmPageService {
		extra.problem(Note, "hf3fs_metadata_server_url", "is read by vLLM but not used; "+vllmPageService+" is contacted anyway", "remove it")
	} else if url != "" {
		extra.problem(Warning, "hf3fs_metadata_server_url", "is read by vLLM but not used; it contacts "+vllmPageService, "remove it, and let a page service listen on port 18000 of this host")
	}
	extra.unknown(about3FS)
	m.unknown(all)

	n, err := vllmNeed(p)
	if err != nil {
		return err
	}
	out.Need = n
	if page := n.ShmBytesPerRank / (2 * vllmEntries * int64(p.Clients)); p.FileBytes < page {
		extra.problem(Failure, "hf3fs_file_size", fmt.Sprintf("is %d; not one page of %s fits, which has %d bytes", p.FileBytes, cmp.Or(n.Assumed, "this model"), page), "write the bytes of many pages, such as 107374182400")
	}
	return nil
}
