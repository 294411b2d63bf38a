package engineconfig

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kv3fs/kv3fs/internal/shellwords"
)

// LMCache reads each key of its file also from a variable, whose name is lmcachePrefix and
// the key in capitals. The variable overrides the file, which may be missing
// (lmcache/v1/config_base.py).
const (
	lmcachePrefix = "LMCACHE_"
	lmcacheFile   = "LMCACHE_CONFIG_FILE"
)

func lmcacheVariable(key string) string { return lmcachePrefix + strings.ToUpper(key) }

// variableKind is what LMCache converts the text of a variable to.
type variableKind int

const (
	textVariable variableKind = iota
	wholeVariable
	fractionVariable
	boolVariable
	listVariable // of words between commas
)

// lmcacheVariables lists the keys that decide about storage, and others that are often set.
// extra_config is read apart.
func lmcacheVariables() map[string]variableKind {
	return map[string]variableKind{
		"chunk_size": wholeVariable, "blocking_timeout_secs": wholeVariable, "lookup_timeout_ms": wholeVariable,
		"min_retrieve_tokens": wholeVariable, "priority_limit": wholeVariable, "gds_buffer_size": wholeVariable, "cufile_buffer_size": wholeVariable,
		"max_local_cpu_size": fractionVariable, "reserve_local_cpu_size": fractionVariable, "max_local_disk_size": fractionVariable,
		"local_cpu": boolVariable, "use_layerwise": boolVariable, "save_decode_cache": boolVariable, "save_unfull_chunk": boolVariable,
		"enable_async_loading": boolVariable, "use_gds": boolVariable,
		"remote_url": textVariable, "remote_serde": textVariable, "local_disk": textVariable, "pre_caching_hash_algorithm": textVariable,
		"gds_path": textVariable, "gds_path_sharding": textVariable, "gds_backend": textVariable, "cache_policy": textVariable, "numa_mode": textVariable,
		"remote_storage_plugins": listVariable,
	}
}

// InEnvironment reports whether an environment configures LMCache: by a file, whose name it
// returns, or, with an empty name, by variables alone.
func InEnvironment(engine string, env func(string) (string, bool)) (file string, found bool) {
	if engine != LMCache && engine != LMCacheGDS {
		return "", false
	}
	if file, found = env(lmcacheFile); found && file != "" {
		return file, true
	}
	for key := range lmcacheVariables() {
		if _, found = env(lmcacheVariable(key)); found {
			return "", true
		}
	}
	_, found = env(lmcacheVariable("extra_config"))
	return "", found
}

// lmcacheSettings reads LMCache's settings from a YAML file, from a script that sets variables
// and starts an engine, or, if content is empty, from variables alone. The environment
// overrides the file.
func lmcacheSettings(out *Config, content []byte, env func(string) (string, bool)) (top, extra *mapping, err error) {
	var values map[string]any
	script := launches(content)
	if script {
		if env, err = launched(out, content, env); err != nil {
			return nil, nil, err
		}
	} else if values, err = decodeYAML(content); err != nil {
		return nil, nil, err
	}
	if values == nil { // an empty file
		values = map[string]any{}
	}
	top = newMapping(values, "", out)
	if script || content == nil {
		top.name = lmcacheVariable
	}
	overlay(top, env)
	retired(out, env)
	extra, err = lmcacheExtra(top, env)
	return top, extra, err
}

// overlay replaces values by those of variables.
func overlay(top *mapping, env func(string) (string, bool)) {
	kinds := lmcacheVariables()
	from := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(kinds)) {
		name := lmcacheVariable(key)
		text, set := env(name)
		if !set {
			continue
		}
		value, err := converted(kinds[key], unquoted(text))
		if err != nil {
			what := "LMCache logs that and goes on without it"
			if top.values[key] != nil {
				what = "LMCache logs that and keeps the value of the file"
			}
			top.out.add(Failure, name, fmt.Sprintf("is the text %.80q, not %v; %s", text, err, what), fmt.Sprintf("write %v", err))
			continue
		}
		if kinds[key] == boolVariable && !slices.Contains([]string{"true", "1", "false", "0"}, strings.ToLower(strings.TrimSpace(unquoted(text)))) {
			top.out.add(Warning, name, fmt.Sprintf("is %.80q, which counts as false: only true and 1 are true", text), "write true or false")
		}
		top.values[key], from[key] = value, name
	}
	if top.name == nil {
		top.name = func(key string) string {
			if name, overridden := from[key]; overridden {
				return name
			}
			return key
		}
	}
}

// converted converts a variable's text. The error is what the text should have been.
func converted(kind variableKind, text string) (any, error) {
	trimmed := strings.TrimSpace(text)
	switch kind {
	case wholeVariable:
		if n, err := strconv.ParseInt(trimmed, 10, 64); err == nil {
			return n, nil
		}
		return nil, errors.New("a whole number")
	case fractionVariable:
		if f, err := strconv.ParseFloat(trimmed, 64); err == nil {
			return f, nil
		}
		return nil, errors.New("a number")
	case boolVariable:
		lower := strings.ToLower(trimmed)
		return lower == "true" || lower == "1", nil
	case listVariable:
		list := []any{}
		for _, word := range splitList(text) {
			list = append(list, word)
		}
		return list, nil
	}
	return text, nil
}

// unquoted removes quotes around a whole text, as LMCache does.
func unquoted(text string) string {
	if n := len(text); n >= 2 && text[0] == text[n-1] && (text[0] == '"' || text[0] == '\'') {
		return text[1 : n-1]
	}
	return text
}

// lmcacheExtra returns extra_config, which the environment replaces as a whole.
func lmcacheExtra(top *mapping, env func(string) (string, bool)) (*mapping, error) {
	extra := top.child("extra_config")
	name := lmcacheVariable("extra_config")
	text, ok := env(name)
	if !ok || strings.TrimSpace(text) == "" {
		return extra, nil
	}
	err := checkText([]byte(text))
	var values map[string]any
	if err == nil {
		values, err = decodeJSON([]byte(unquoted(text)))
	}
	if err != nil {
		return nil, fmt.Errorf("%s %w", name, err)
	}
	if extra.values != nil {
		top.out.add(Warning, "extra_config", "is in the file and in "+name+", which replaces all of it", "keep it in one place")
	}
	return newMapping(values, name+".", top.out), nil
}

// launches reports whether a text is a script or command line rather than YAML: its first line
// sets a variable or starts vLLM.
func launches(content []byte) bool {
	for line := range bytes.Lines(content) {
		text := strings.TrimPrefix(strings.TrimSpace(string(line)), "export ")
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		name, _, assigns := strings.Cut(text, "=")
		return assigns && shellwords.IsVariable(name) || strings.HasPrefix(text, "vllm ") || strings.HasPrefix(text, "set ")
	}
	return false
}

// launched reads the variables that a script sets, before those of env, and what its command
// line says about the GPUs.
func launched(out *Config, content []byte, env func(string) (string, bool)) (func(string) (string, bool), error) {
	words, err := shellwords.Split(string(content))
	if err != nil {
		return nil, err
	}
	vars := shellwords.Assignments(words)
	out.Problems = append(out.Problems, Misnamed(out.Engine, slices.Collect(maps.Keys(vars)))...)
	if file, set := vars[lmcacheFile]; set {
		return nil, fmt.Errorf("names LMCache's configuration, %.80s; give that file instead", file)
	}
	out.TP = vllmParams(words, Params{}).TP
	out.GPUMemoryUtilization = gpuMemoryUtilization(out, words)
	return func(name string) (string, bool) {
		if value, set := vars[name]; set {
			return value, true
		}
		return env(name)
	}, nil
}

// gpuMemoryUtilization returns the share of a GPU's memory that a command line gives vLLM, 0
// if it does not say.
func gpuMemoryUtilization(out *Config, words []string) float64 {
	const flag = "--gpu-memory-utilization"
	text := lastFlag(words, flag, "--gpu_memory_utilization")
	if text == "" {
		return 0
	}
	share, err := strconv.ParseFloat(text, 64)
	if err != nil || !(share > 0 && share <= 1) {
		out.add(Failure, flag, fmt.Sprintf("is %.80q", text), "write a share above 0 and at most 1, such as 0.85")
		return 0
	}
	return share
}

// retired reports variables that LMCache's and vLLM's pages still name.
func retired(out *Config, env func(string) (string, bool)) {
	note := func(name, what string) {
		if _, set := env(name); set {
			out.add(Note, name, what, "remove it")
		}
	}
	note("LMCACHE_USE_EXPERIMENTAL", "is retired: what it turned on is LMCache's only engine")
	retiredVLLM(out, env)
	if level, set := env("LMCACHE_LOG_LEVEL"); set {
		if !slices.Contains([]string{"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}, strings.ToUpper(level)) {
			out.add(Warning, "LMCACHE_LOG_LEVEL", fmt.Sprintf("is %.80q, which counts as INFO", level), "write DEBUG, INFO, WARNING, ERROR or CRITICAL")
		} else {
			out.add(Note, "LMCACHE_LOG_LEVEL", "only sets the level of LMCache's log; INFO is the default", "")
		}
	}
}

// retiredVLLM reports variables that vLLM no longer reads, or that say what is so anyway.
func retiredVLLM(out *Config, env func(string) (string, bool)) {
	if v1, set := env("VLLM_USE_V1"); set && v1 == "0" {
		out.add(Warning, "VLLM_USE_V1", "is 0, which chose an engine that vLLM removed, and with it this variable, in 0.11.1; LMCacheConnectorV1 does not work with that engine", "remove it")
	} else if set {
		out.add(Note, "VLLM_USE_V1", "is retired: vLLM removed it in 0.11.1, and has only that engine", "remove it")
	}
	if value, set := env("VLLM_ENABLE_V1_MULTIPROCESSING"); set && value != "0" {
		out.add(Note, "VLLM_ENABLE_V1_MULTIPROCESSING", "says what vLLM does anyway", "remove it")
	}
	if method, set := env("VLLM_WORKER_MULTIPROC_METHOD"); set && method == "spawn" {
		out.add(Note, "VLLM_WORKER_MULTIPROC_METHOD", "is spawn, which vLLM chooses by itself where it must; the storage does not need it", "remove it")
	}
}
