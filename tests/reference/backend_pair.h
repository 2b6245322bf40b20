/// Lanes on the CUDA backend and on the CPU's beside each other, row by row, with what a command may do between rows.
#pragma once

#include "engine/backend/cuda/cuda_backend.h"
#include "engine/policy/lane_spec.h"
#include "engine/session/session.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace reference {

inline constexpr keyhole::RowWants kAllOfARow{true, true, true, true, true};

/// On what executor_under_test() gives.
std::unique_ptr<keyhole::Backend> cuda_backend(const std::shared_ptr<const keyhole::Model>& model,
                                               unsigned shuffle = 1,
                                               const keyhole::cuda::ProductOptions& products = {});

/// Skipped by name where there is no device.
class CudaBackend : public testing::Test {
  protected:
    void SetUp() override;
};

/// A lane's policy on the model that it runs (shared as the spec says), 20 tokens to generate.
keyhole::ResolvedPolicy policy_of(const std::string& spec, const keyhole::Model& model, int n_prompt);

/// Every lane gives the bits that it gives alone, and in another order of threads: one that read what another thread writes in the same
/// phase would give others, and a lane that read another's numbers.
void expect_lanes_stand_alone(const std::shared_ptr<const keyhole::Model>& model,
                              const std::vector<std::string>& specs);

/// Graphs that 30 rows of the lanes take. On a device a list equal to the one before runs as a graph: what changes from row to row must
/// not be in it.
int graphs_of(const std::shared_ptr<const keyhole::Model>& model, const std::vector<std::string>& specs);

/// A session with commands in it ("step 8": rows) on the CPU, and on CUDA with checkpoints and without: the same tokens and evictions,
/// logits within rounding, the two of CUDA and a replay of the first to the bit.
void expect_sessions_follow_the_cpu(const std::shared_ptr<const keyhole::Model>& model,
                                    const keyhole::RunSpec& spec, const std::vector<std::string>& script);

/// A lane on both backends.
struct Twin {
    std::shared_ptr<const keyhole::Model> model;
    std::unique_ptr<keyhole::KvCache> cpu, cuda;
    keyhole::RowOutput cpu_out, cuda_out;
};

class Pair {
  public:
    explicit Pair(const TinyShape& shape, int n_prompt = 30);
    explicit Pair(std::shared_ptr<const keyhole::Model> of, int n_prompt = 30, std::uint64_t seed = 1,
                  const keyhole::cuda::ProductOptions& products = {});

    /// Lanes may share KV heads otherwise than the model. Differences are failures of the test.
    void start(const std::vector<std::string>& specs);
    void step(int n_rows = 1);
    void apply(std::size_t lane, const std::string& spec);
    void evict(std::size_t lane, int g, int position);
    void pin(std::size_t lane, int g, int position, bool pinned = true);
    /// A lane more, with all that the lane has.
    void fork(std::size_t lane);
    void compare(const std::string& where);

    std::shared_ptr<const keyhole::Model> model;
    std::unique_ptr<keyhole::Backend> cpu, cuda;
    std::vector<keyhole::ResolvedPolicy> policies;
    std::vector<Twin> lanes;
    double tolerance = 2e-4;

  private:
    void prefill_lanes_of(const keyhole::Model* one);
    void near(const char* what, const std::vector<float>& a, const std::vector<float>& b) const;

    int n_prompt_, next_;
    std::vector<int> tokens_;
};

}  // namespace reference
