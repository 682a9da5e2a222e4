//! Speed of register tiles of several shapes, AVX-512 and AVX2: why the products use tiles with these rows
//! and panels.
//!
//! `cargo run --release -p tamis-bench --example tile_speed -- [rounds]`
//!
//! A tile of R rows and P panels of 16 columns keeps R x P (AVX2: 2 R x P) registers of outputs. For each
//! step of the chains it loads P panels' lines and broadcasts R factors from memory. The factors are adjacent
//! here, so that no shape needs more addresses than another. The shapes are measured in turn in each round,
//! on one thread: on operands in the first-level cache (chains of 128), and with A in the second-level cache
//! (96 rows, chains of 768, as in a pass over a panel). Each line has the best of the rounds in Gflop/s.
#![allow(unsafe_code, reason = "intrinsics on raw pointers whose bounds are checked")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints its measurements")]
#![allow(missing_docs, reason = "a program")]

#[cfg(target_arch = "x86_64")]
mod tiles {
    use std::arch::x86_64::{
        __m256, __m512, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps,
        _mm256_storeu_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_setzero_ps,
        _mm512_storeu_ps,
    };
    use std::time::Instant;

    const PANEL: usize = 16;

    /// A tile's kernel: outputs of all rows and panels over chains of a length.
    type Kernel = unsafe fn(a: *const f32, b: *const f32, c: *mut f32, k: usize);

    /// A shape with its kernel.
    struct Shape {
        level: &'static str,
        rows: usize,
        panels: usize,
        kernel: Kernel,
    }

    macro_rules! tile {
        ($name:ident, $feature:literal, $register:ty, $width:literal, $zero:ident, $load:ident, $set:ident, $fma:ident, $store:ident) => {
            /// # Safety
            /// This machine has the features; A has k columns of R, B P panels of k lines, C R x P lines.
            #[target_feature(enable = $feature)]
            unsafe fn $name<const R: usize, const P: usize>(
                a: *const f32,
                b: *const f32,
                c: *mut f32,
                k: usize,
            ) {
                const PARTS: usize = PANEL / $width;
                // SAFETY: the caller vouches for the bounds.
                unsafe {
                    let mut sums: [[[$register; PARTS]; P]; R] = [[[$zero(); PARTS]; P]; R];
                    for t in 0..k {
                        let mut lines: [[$register; PARTS]; P] = [[$zero(); PARTS]; P];
                        for p in 0..P {
                            for part in 0..PARTS {
                                lines[p][part] = $load(b.add((p * k + t) * PANEL + part * $width));
                            }
                        }
                        for r in 0..R {
                            let factor = $set(*a.add(t * R + r));
                            for p in 0..P {
                                for part in 0..PARTS {
                                    sums[r][p][part] = $fma(factor, lines[p][part], sums[r][p][part]);
                                }
                            }
                        }
                    }
                    for r in 0..R {
                        for p in 0..P {
                            for part in 0..PARTS {
                                $store(c.add((r * P + p) * PANEL + part * $width), sums[r][p][part]);
                            }
                        }
                    }
                }
            }
        };
    }
    tile!(
        avx512,
        "avx512f",
        __m512,
        16,
        _mm512_setzero_ps,
        _mm512_loadu_ps,
        _mm512_set1_ps,
        _mm512_fmadd_ps,
        _mm512_storeu_ps
    );
    tile!(
        avx2,
        "avx2,fma",
        __m256,
        8,
        _mm256_setzero_ps,
        _mm256_loadu_ps,
        _mm256_set1_ps,
        _mm256_fmadd_ps,
        _mm256_storeu_ps
    );

    fn shapes() -> Vec<Shape> {
        macro_rules! shapes {
            ($level:ident: $(($rows:literal, $panels:literal)),*) => {
                [$(Shape {
                    level: stringify!($level),
                    rows: $rows,
                    panels: $panels,
                    kernel: $level::<$rows, $panels>,
                }),*]
            };
        }
        let mut shapes = Vec::new();
        if is_x86_feature_detected!("avx512f") {
            shapes.extend(shapes!(avx512: (12, 1), (24, 1), (12, 2), (14, 2), (8, 3), (9, 3), (6, 4)));
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            shapes.extend(shapes!(avx2: (6, 1), (4, 1), (2, 2)));
        }
        shapes
    }

    /// Gflop/s of one pass over `rows` rows, in whole tiles, at least 2 ms.
    fn measure(shape: &Shape, rows: usize, k: usize) -> f64 {
        let tiles = (rows / shape.rows).max(1);
        let a = vec![0.5f32; tiles * shape.rows * k];
        let b = vec![0.5f32; shape.panels * PANEL * k + PANEL];
        let mut c = vec![0.0f32; shape.rows * shape.panels * PANEL];
        // Aligned to a cache line.
        let b = &b[b.as_ptr().align_offset(4 * PANEL).min(PANEL)..];
        assert!(b.len() >= shape.panels * PANEL * k, "B begins at a line");
        let operations = 2 * tiles * shape.rows * shape.panels * PANEL * k;
        let passes = 300_000_000 / operations + 1;
        let start = Instant::now();
        for _ in 0..passes {
            for rows in a.chunks_exact(shape.rows * k) {
                // SAFETY: the features are there, and the lengths are those of the shape.
                unsafe { (shape.kernel)(rows.as_ptr(), b.as_ptr(), c.as_mut_ptr(), k) };
                std::hint::black_box(&mut c);
            }
        }
        (passes * operations) as f64 / start.elapsed().as_secs_f64() / 1e9
    }

    pub(super) fn run(rounds: usize) {
        let shapes = shapes();
        let mut best = vec![[0.0f64; 2]; shapes.len()];
        for _ in 0..rounds {
            for (shape, best) in shapes.iter().zip(&mut best) {
                best[0] = best[0].max(measure(shape, shape.rows, 128));
                best[1] = best[1].max(measure(shape, 96, 768));
            }
        }
        for (Shape { level, rows, panels, .. }, [near, far]) in shapes.iter().zip(best) {
            println!(
                r#"{{"what":"tile","level":"{level}","rows":{rows},"panels":{panels},"gflops_near":{near:.1},"gflops_pass":{far:.1}}}"#
            );
        }
    }
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(50);
    #[cfg(target_arch = "x86_64")]
    tiles::run(rounds);
    #[cfg(not(target_arch = "x86_64"))]
    eprintln!("tile_speed: {rounds} rounds of nothing: the tiles are for x86_64");
}
