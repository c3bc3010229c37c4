package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"

	"libra.dev/libra/loadtest/demo/evaluation"
)

const (
	// inputHeader says which of its function's inputs a request has. Only the oracle's
	// functions are configured to take it for the size of the input.
	inputHeader = "Libra-Evaluation-Input"

	predictorURLEnv = "LIBRA_PREDICTOR_URL"
	// oracleVersion is higher than the predictor's versions, which are times in milliseconds,
	// so that its announcements about a function that the oracle knows are outdated.
	oracleVersion = "4611686018427387904"

	oracleTimeout = 5 * time.Second
)

// oracle is a predictor that is never wrong: it answers, over the Open Inference Protocol v2,
// with what each input used when it ran alone. It asks the predictor about functions that it
// does not know. It is in this process, because the measurements are. The activator gets its
// address as it would any predictor's.
type oracle struct {
	url       string
	server    *http.Server
	predictor http.Handler

	mu    sync.Mutex
	known map[string][]byte // answers, by the name of the model
	asked map[string]bool
}

// startOracle starts an oracle where pods reach it, and has the activator ask it.
func (e *evaluate) startOracle(ctx context.Context) (err error) {
	var service corev1.Service
	if err := e.kubectl.get(ctx, &service, "-n", libraNamespace, "service", "libra-predictor"); err != nil {
		return err
	}
	// Pods reach this machine at the address from which it reaches the cluster's addresses.
	way, err := new(net.Dialer).DialContext(ctx, "udp", net.JoinHostPort(service.Spec.ClusterIP, "80"))
	if err != nil {
		return fmt.Errorf("find the address by which pods reach this machine: %w", err)
	}
	host := way.LocalAddr().(*net.UDPAddr).IP.String()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	if err := errors.Join(err, way.Close()); err != nil {
		return fmt.Errorf("serve perfect predictions: %w", err)
	}
	o := newOracle(&url.URL{Scheme: "http", Host: service.Spec.ClusterIP})
	o.url = "http://" + listener.Addr().String()
	go o.server.Serve(listener) //nolint:errcheck // it ends when it is closed
	e.oracle = o
	e.say("perfect predictor: the activator asks %s", o.url)
	return e.setActivator(ctx, askPredictor(o.url))
}

// askPredictor has the activator ask the predictor at url.
func askPredictor(url string) func(*applycorev1.PodSpecApplyConfiguration) {
	return func(pod *applycorev1.PodSpecApplyConfiguration) {
		pod.Containers[0].WithEnv(variable(predictorURLEnv, url))
	}
}

// newOracle returns an oracle that knows no function yet.
func newOracle(predictor *url.URL) *oracle {
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(predictor) }}
	o := &oracle{predictor: proxy, known: map[string][]byte{}, asked: map[string]bool{}}
	o.server = &http.Server{Handler: o, ReadTimeout: oracleTimeout, WriteTimeout: oracleTimeout}
	return o
}

func (o *oracle) stop() error {
	if o == nil {
		return nil
	}
	return o.server.Close()
}

func (o *oracle) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	model := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/v2/models/"), "/infer")
	o.mu.Lock()
	answer, ok := o.known[model]
	o.asked[model] = o.asked[model] || ok
	o.mu.Unlock()
	if !ok {
		o.predictor.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(answer) //nolint:errcheck // who asked has gone
}

// modelOf returns the name of the model of a revision, namespace/name.
func modelOf(revision string) string { return strings.Replace(revision, "/", ".", 1) }

// learn teaches the oracle the functions at a place, from their inputs run alone.
func (o *oracle) learn(own *demo, functions []string, alone []evaluation.Alone) error {
	byFunction := map[string][]evaluation.Alone{}
	for _, a := range alone {
		if all := byFunction[a.Function]; a.Input != len(all) {
			return fmt.Errorf("input %d of %s ran alone after %d others: the oracle needs the inputs in order", a.Input, a.Function, len(all))
		}
		byFunction[a.Function] = append(byFunction[a.Function], a)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range functions {
		if len(byFunction[f]) == 0 {
			return fmt.Errorf("no input of %s ran alone: what it uses is not known", f)
		}
		answer, err := json.Marshal(exactly(byFunction[f]))
		if err != nil {
			return err
		}
		o.known[modelOf(own.targets.revisions[f])] = answer
	}
	return nil
}

// unasked returns an error that names the functions at a place about which the activator has
// not asked the oracle: they run without a prediction, or with another predictor's.
func (o *oracle) unasked(own *demo) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var errs []error
	for _, f := range own.services.all {
		if !o.asked[modelOf(own.targets.revisions[f])] {
			errs = append(errs, fmt.Errorf("the activator has not asked %s about %s/%s: can pods reach this machine at that address?", o.url, own.namespace, f))
		}
	}
	return errors.Join(errs...)
}

// inference is an answer of the protocol, as far as the activator reads it.
type inference struct {
	ModelName  string            `json:"model_name"`
	Parameters map[string]string `json:"parameters"`
	Outputs    []inferredTensor  `json:"outputs"`
}

type inferredTensor struct {
	Name     string  `json:"name"`
	Shape    []int   `json:"shape"`
	Datatype string  `json:"datatype"`
	Data     []int64 `json:"data"`
}

// exactly returns the answer about a function whose inputs are known by their numbers: a step
// for each. For a request without a number it predicts nothing.
func exactly(inputs []evaluation.Alone) inference {
	answer := inference{ModelName: "oracle", Parameters: map[string]string{
		"version": oracleVersion, "estimator": "oracle", "stage": "modelled", "reason": "each input was run alone",
	}}
	add := func(name string, data []int64) {
		answer.Outputs = append(answer.Outputs, inferredTensor{name, []int{len(data)}, "INT64", data})
	}
	for _, of := range []struct {
		name  string
		value func(evaluation.Alone) int64
	}{
		{"cpu_milli", func(a evaluation.Alone) int64 { return a.Peak.CPUMilli }},
		{"memory_bytes", func(a evaluation.Alone) int64 { return a.Peak.MemoryBytes }},
		{"duration_ms", func(a evaluation.Alone) int64 { return int64(a.Milliseconds) }},
		{"cpu_time_us", func(a evaluation.Alone) int64 { return int64(1000 * a.CPUMilliseconds) }},
	} {
		var thresholds, values []int64
		for n, a := range inputs {
			if n > 0 {
				thresholds = append(thresholds, int64(n))
			}
			// 0 would mean that it is not predicted.
			values = append(values, max(1, of.value(a)))
		}
		add(of.name+"_thresholds", thresholds)
		add(of.name+"_values", values)
	}
	add("unknown", make([]int64, 3))
	add("unknown_cpu_time_us", make([]int64, 1))
	// The oracle is never wrong, so its offsets are 0.
	add("offset", make([]int64, 2))
	add("largest", make([]int64, 2))
	add("largest_size", []int64{int64(len(inputs) - 1)})
	return answer
}
