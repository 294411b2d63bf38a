package engineconfig

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"strconv"
	"strings"

	"github.com/kv3fs/kv3fs/internal/rtpkeys"
	"github.com/kv3fs/kv3fs/internal/shellwords"
)

// The paths at which RTP-LLM's and Tair KVCM's code looks for the 3FS. No setting of
// RTP-LLM changes them.
const (
	rtpMount    = rtpkeys.Mount
	rtpRootDir  = "rtp_llm"    // of the direct tier
	kvcmRootDir = "kv_manager" // of the SDK
)

// FixedMount returns the mount point that is built into an engine, "" if it is
// configurable.
func FixedMount(engine string) string {
	if engine == RTPLLM {
		return rtpMount
	}
	return ""
}

// readRTPLLM reads the environment with which RTP-LLM is started, or its command line.
func readRTPLLM(out *Config, content []byte, _ Params, env func(string) (string, bool)) error {
	values, arguments, err := rtpSettings(out, content)
	if err != nil {
		return err
	}
	m := newMapping(values, "", out)
	on := func(key string) string { return "write " + key + "=1" }
	if arguments != nil {
		m.name = func(key string) string {
			if name, given := arguments[key]; given {
				return name
			}
			return key
		}
		on = func(key string) string { return "--" + strings.ToLower(key) + " True" }
	}
	e := environment{m, env}

	remote, direct := e.boolean("ENABLE_REMOTE_CACHE"), e.boolean("ENABLE_3FS")
	out.TP = int(e.number("TP_SIZE", 0))
	out.Mount = rtpMount
	out.Need = kvcmNeed()
	if !e.boolean("REUSE_CACHE") {
		m.problem(Failure, "REUSE_CACHE", "is not 1, so RTP-LLM keeps no cache at all", on("REUSE_CACHE"))
	}
	switch {
	case direct && remote:
		m.problem(Warning, "ENABLE_3FS", "and ENABLE_REMOTE_CACHE are both on", "keep ENABLE_REMOTE_CACHE; the direct tier was removed in April 2026")
	case direct:
		m.problem(Note, "ENABLE_3FS", "is the direct 3FS tier, which RTP-LLM had from August 2025 to April 2026", "with a newer RTP-LLM use ENABLE_REMOTE_CACHE=1")
	case !remote:
		m.problem(Failure, "ENABLE_REMOTE_CACHE", "is not 1, nor is ENABLE_3FS, so nothing is stored on a 3FS", on("ENABLE_REMOTE_CACHE"))
	}
	if remote || !direct {
		readKVCM(e)
	}
	if direct {
		readRTPDirect(e)
	}
	rtpKnown(m)
	m.unknown(func(key string) bool {
		return strings.HasPrefix(key, "THREEFS_") || strings.HasPrefix(key, "RECO_") || strings.HasPrefix(key, "KVCM_")
	})
	return nil
}

// rtpSettings returns variables by name: of an environment file, or of a command line, whose
// arguments have the same names in lower case and prevail. For a command line, arguments has
// those that were given, as written.
func rtpSettings(out *Config, content []byte) (values map[string]any, arguments map[string]string, err error) {
	words, err := shellwords.Split(string(content))
	given := shellwords.RTPArguments(words)
	if err != nil || len(given) == 0 {
		values, err = envFile(out, content)
		return values, nil, err
	}
	values, arguments = map[string]any{}, map[string]string{}
	for name, value := range shellwords.Assignments(words) {
		values[name] = value
	}
	for _, a := range given {
		if !a.HasValue {
			out.add(Failure, a.Name, "has no value; RTP-LLM's arguments need one", "write "+a.Name+" True")
			a.Value = "True" // what it means, for the other checks
		}
		values[a.Variable], arguments[a.Variable] = a.Value, a.Name
	}
	return values, arguments, nil
}

// readRTPDirect reads the settings of RTP-LLM's own 3FS tier.
func readRTPDirect(e environment) {
	m, out := e.m, e.m.out
	for _, key := range []string{"BIZ_NAME", "CHECKPOINT_PATH"} {
		if e.text(key) == "" {
			m.problem(Failure, key, "is missing; it is part of every file's path", "set it, to the same value on all hosts that share files")
		}
	}
	is := map[string]int64{}
	for _, key := range rtpkeys.Direct() {
		is[key] = e.number(key, rtpIovBytes)
	}
	read, write := is["THREEFS_READ_IOV_SIZE"], is["THREEFS_WRITE_IOV_SIZE"]
	dir := rtpkeys.DirectRoot
	if root := e.text("THREEFS_ROOT_DIR"); root != "" {
		m.problem(Note, "THREEFS_ROOT_DIR", "is meant for debugging", "")
		dir = rtpkeys.Join(rtpMount, root)
	}
	out.BasePaths = append(out.BasePaths, dir)
	out.Need = rtpDirectNeed(read, write)
}

// readKVCM reads the settings of Tair KVCM, whose SDK moves the data.
func readKVCM(e environment) {
	m, out := e.m, e.m.out
	out.BasePaths = append(out.BasePaths, path.Join(rtpMount, kvcmRootDir))
	if e.kvcm("CLIENT_CONFIG") == "" && e.kvcm("SERVER_ADDRESS") == "" && !(shellwords.RTPTrue(e.kvcm("ENABLE_VIPSERVER")) && e.kvcm("VIPSERVER_DOMAIN") != "") {
		m.problem(Failure, "KVCM_SERVER_ADDRESS", "is missing, as is RECO_SERVER_ADDRESS; RTP-LLM does not find the KV cache manager", "write KVCM_SERVER_ADDRESS=HOST:6381, and RECO_SERVER_ADDRESS for versions before September 2026")
	}
	kvcmVersions(m)
	readKVCMQueries(e)
	m.ignored(Warning, "KVCM_MODEL_SDK_CONFIG", "is not read; RTP-LLM's --kvcm_model_sdk_config kept the name of its variable", "write RECO_MODEL_SDK_CONFIG")
	if readKVCMClient(e) {
		return
	}
	text := e.text(rtpkeys.ModelSDKConfig)
	if text == "" {
		return
	}
	backends, refused := rtpkeys.ReadModelSDKConfig(text)
	for _, r := range refused {
		m.problem(Failure, r.Name, r.What, r.Fix)
	}
	for i, values := range backends[:min(len(backends), maxUnknown)] {
		readSDKBackend(newMapping(values, fmt.Sprintf("%s[%d].", rtpkeys.ModelSDKConfig, i), out))
	}
}

// readKVCMClient reads a client's configuration, and reports whether it has that of the SDK.
func readKVCMClient(e environment) bool {
	client := e.kvcm("CLIENT_CONFIG")
	if client == "" {
		return false
	}
	has, err := rtpkeys.HasSDKConfig(client)
	if err == nil && has {
		_, err = rtpkeys.ReadSDK([]byte(client))
	}
	if err != nil {
		e.m.problem(Failure, newKVCM+"CLIENT_CONFIG", "is no good: "+err.Error(), "write the JSON of a client of KVCM's, with instance_id and sdk_config")
	}
	return has
}

// readSDKBackend says what becomes of one backend. RTP-LLM parses it and passes it on to the SDK,
// but the two have different names for 3FS.
func readSDKBackend(m *mapping) {
	const defaults = "; the SDK's defaults apply: mount " + rtpMount + "/, directory " + kvcmRootDir + "/, buffers of 4 GiB each way"
	if kind := m.values["type"]; kind != "3fs" {
		return
	}
	m.problem(Note, "type", `"3fs" is RTP-LLM's name; its SDK looks for "hf3fs" and skips this entry`+defaults, "")
	for _, key := range []string{"type", "sdk_log_file_path", "sdk_log_level"} {
		m.known[key] = true
	}
	for key := range maps.Keys(m.values) {
		if !m.known[key] && len(m.known) < maxUnknown {
			m.problem(Warning, clip(key), "does not reach the SDK"+defaults, "remove it")
			m.known[key] = true
		}
	}
}

// rtpKnown marks RTP-LLM's other cache settings as known. Any value of them works.
func rtpKnown(m *mapping) {
	for _, key := range rtpNames() {
		m.known[key] = true
	}
}

// rtpNames lists the variables of RTP-LLM's caches.
func rtpNames() []string {
	names := []string{
		"THREEFS_MATCH_TIMEOUT_MS", "THREEFS_RPC_GET_CACHE_TIMEOUT_MS", "THREEFS_RPC_PUT_CACHE_TIMEOUT_MS", "THREEFS_READ_TIMEOUT_MS",
		"THREEFS_WRITE_TIMEOUT_MS", "THREEFS_READ_IOV_SIZE", "THREEFS_WRITE_IOV_SIZE", "THREEFS_ROOT_DIR",
		"RECO_MODEL_SDK_CONFIG", "KVCM_SDK_CHECK", "KVCM_LOG_LEVEL", "BIZ_NAME", "CHECKPOINT_PATH", "MAX_BLOCK_SIZE_PER_ITEM",
		"KVCM_REMOTE_LAYOUT", "KVCM_DEFAULT_QUERY_TYPE", "KVCM_QUERY_TYPE", "KVCM_SW_SIZE", "KVCM_MIN_REPLICA_COUNT", "KVCM_READ_BACKEND_TYPE",
	}
	for _, name := range kvcmNames() {
		names = append(names, newKVCM+name, oldKVCM+name)
	}
	return names
}

// environment looks a variable up in a file, then in the engine's environment.
type environment struct {
	m   *mapping
	env func(string) (string, bool)
}

func (e environment) text(key string) string {
	if s := e.m.text(key); s != "" || e.m.has(key) {
		return s
	}
	s, _ := e.env(key)
	return s
}

func (e environment) boolean(key string) bool { return shellwords.RTPTrue(e.text(key)) }

// number returns the number of a variable of RTP-LLM's, or the default if none is set.
func (e environment) number(key string, fallback int64) int64 {
	n, refused := rtpkeys.Number(key, e.text(key))
	if refused != nil {
		e.m.problem(Failure, key, refused.What, refused.Fix)
	}
	return cmp.Or(n, fallback)
}

// count returns a number of at least 1, or the default if none is set.
func (e environment) count(key string, fallback, most int64) int64 {
	s := strings.TrimSpace(e.text(key))
	if s == "" {
		return fallback
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 || n > most {
		e.m.problem(Failure, key, fmt.Sprintf("is %.80q", s), fmt.Sprintf("write a whole number, 1 to %d", most))
		return fallback
	}
	return n
}
