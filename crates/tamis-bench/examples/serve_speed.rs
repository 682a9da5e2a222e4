//! Cost of the HTTP side of `tamis serve`: tokens per second of a server at several numbers of clients,
//! against the engine by itself on the same prompts with as many samples at once.
//!
//! `cargo run --release -p tamis-bench --example serve_speed -- [small|large] [THREADS]`. Each pair is
//! measured in turns, and the medians are printed.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program for developers")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::{Map, json};
use tamis_core::random::{Key, Purpose};
use tamis_model::{
    Architecture, BatchGenerator, GenerationRequest, GeneratorSettings, Model, SamplingParams, Threads,
    TransformerConfig,
};
use tamis_serve::{NativeServer, ServeSettings, ServedPolicy};
use tamis_text::tokenizer::Tokenizer;

const TURNS: usize = 5;
const PROMPT: usize = 48;
const ROWS: usize = 2048;

/// One case of the measurement: a model and its workload.
struct Load {
    model: Model,
    num_requests: usize,
    new_tokens: usize,
}

fn load(name: &str) -> Load {
    let (hidden, inner, layers, heads, num_requests, new_tokens) = match name {
        // About 2 million weights, which stay near the cores.
        "small" => (128, 512, 4, 4, 256, 64),
        // About 100 million, which stream from memory.
        _ => (576, 1536, 28, 9, 64, 32),
    };
    let mut config = TransformerConfig::new(Architecture::Llama, ROWS, hidden, inner, layers, heads, 512);
    config.num_kv_heads = heads.div_ceil(3);
    while heads % config.num_kv_heads != 0 {
        config.num_kv_heads += 1;
    }
    Load { model: Model::init(config, Key::new(1, Purpose::Init)).unwrap(), num_requests, new_tokens }
}

fn prompt(i: usize) -> Vec<u32> {
    (0..PROMPT).map(|t| ((i * 131 + t * 17) % (ROWS - 8) + 4) as u32).collect()
}

fn key(i: usize) -> Key {
    Key::new(3, Purpose::Rollout).with(i as u64)
}

/// Seconds of the engine by itself.
fn alone(load: &Load, threads: &Threads, at_once: usize) -> f64 {
    let settings = GeneratorSettings { max_sequences: at_once, ..GeneratorSettings::default() };
    let mut generator = BatchGenerator::new(load.model.config(), settings);
    let start = Instant::now();
    for i in 0..load.num_requests {
        let params = SamplingParams { max_new_tokens: load.new_tokens, ..SamplingParams::default() };
        generator
            .submit(GenerationRequest {
                prompt: prompt(i),
                keys: vec![key(i)],
                params,
                stop: None,
                mask: None,
            })
            .unwrap();
    }
    let done = generator.run(threads, &load.model);
    assert_eq!(done.len(), load.num_requests);
    start.elapsed().as_secs_f64()
}

/// Seconds of the server with this many clients, each of which sends its next request when it has an answer.
fn served(load: &Load, address: SocketAddr, clients: usize) -> f64 {
    let next = AtomicUsize::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                let mut stream = BufReader::new(TcpStream::connect(address).unwrap());
                stream.get_ref().set_nodelay(true).unwrap();
                loop {
                    let i = next.fetch_add(1, Ordering::SeqCst);
                    if i >= load.num_requests {
                        return;
                    }
                    let body = json!({
                        "token_ids": prompt(i),
                        "sampling_params": {"max_tokens": load.new_tokens, "logprobs": 0, "ignore_eos": true},
                        "tamis": {"key": key(i).to_string()},
                    })
                    .to_string();
                    let head = format!(
                        "POST /inference/v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: \
                             application/json\r\nContent-Length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    stream.get_mut().write_all(head.as_bytes()).unwrap();
                    read(&mut stream);
                }
            });
        }
    });
    start.elapsed().as_secs_f64()
}

fn read(stream: &mut BufReader<TcpStream>) {
    let (mut line, mut length) = (String::new(), 0);
    loop {
        line.clear();
        stream.read_line(&mut line).unwrap();
        let line = line.trim_end().to_ascii_lowercase();
        assert!(!line.starts_with("http/1.1 ") || line.starts_with("http/1.1 200"), "{line}");
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    stream.read_exact(&mut vec![0; length]).unwrap();
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.first().map_or("small", String::as_str);
    let num_threads = arguments.get(1).and_then(|threads| threads.parse().ok()).unwrap_or(2);
    let load = load(name);
    let threads = Threads::new(num_threads);
    let tokenizer = Tokenizer::characters("0123456789+=").unwrap();
    let policy = ServedPolicy {
        name: "bench".to_owned(),
        folder: PathBuf::new(),
        model: load.model.clone(),
        template: None,
        template_arguments: Map::new(),
        end_token_ids: Vec::new(),
        tokenizer,
        load: Box::new(|_| Err("this server has one set of weights".to_owned())),
    };
    let settings = ServeSettings { port: 0, threads: num_threads, ..ServeSettings::default() };
    let server = NativeServer::begin(vec![policy], &settings).unwrap();
    let (address, stop) = (server.address(), Arc::new(AtomicBool::new(false)));
    let flag = stop.clone();
    let serving = std::thread::spawn(move || server.run(&flag, None).unwrap());
    println!(
        "{name}: {} parameters, {} requests of {PROMPT} + {} tokens, {num_threads} threads",
        load.model.num_parameters(),
        load.num_requests,
        load.new_tokens
    );
    let tokens = (load.num_requests * load.new_tokens) as f64;
    for at_once in [8, 16, 32, 64] {
        let (mut engine, mut server, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for turn in 0..=TURNS {
            let pair = (alone(&load, &threads, at_once), served(&load, address, at_once));
            // The first warms both up.
            if turn > 0 {
                engine.push(pair.0);
                server.push(pair.1);
                ratios.push(pair.1 / pair.0);
            }
        }
        println!(
            "{at_once:>3} at once: engine {:>7.0} tokens/s, server {:>7.0} tokens/s, time ratio {:.3}",
            tokens / median(engine),
            tokens / median(server),
            median(ratios)
        );
    }
    stop.store(true, Ordering::SeqCst);
    serving.join().unwrap();
}
