/// What the fuzzers count in the engine, in programs that count nothing.
extern "C" {

void __sanitizer_cov_trace_pc();
void __sanitizer_cov_trace_cmpf(float, float);
void __sanitizer_cov_trace_cmpd(double, double);

[[gnu::weak]] void __sanitizer_cov_trace_pc() {}
[[gnu::weak]] void __sanitizer_cov_trace_cmpf(float, float) {}
[[gnu::weak]] void __sanitizer_cov_trace_cmpd(double, double) {}
}
