/// PTX, as nvcc writes it, decoded to operations that a warp of 32 lanes runs together. Parses the text once,
/// and each kernel when it is first launched. Throws Fault at an instruction that it does not know. Knows
/// nothing of memory and launches. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ptx {

inline constexpr int kLanes = 32;

/// What a device would not do, or would do differently from run to run: one line.
struct Fault : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Warp;
struct Op;
using Run = void (*)(Warp& warp, const Op& op);

enum class Space : std::uint8_t { generic, global, shared, local, param };
/// collective: all lanes that take part must be there.
enum class Kind : std::uint8_t { plain, branch, exit, barrier, collective };

/// Generic addresses are those of the host; the other spaces lie where no host memory does.
inline constexpr std::uint64_t kSharedBase = 1ull << 56, kLocalBase = 2ull << 56;

/// One instruction. Registers are arrays of 32 lanes, predicates masks of 32 bits.
struct Op {
    static constexpr std::uint32_t kNone = ~0u;
    Run run = nullptr;
    Kind kind = Kind::plain;
    Space space = Space::generic;
    bool read_only = false;               ///< ld.global.nc
    bool guard_inverted = false;          ///< @!%p
    bool names_members = false;           ///< its last operand is the mask of the lanes that take part
    std::uint8_t bytes = 0;               ///< of one element in memory
    std::uint8_t n_elements = 1;          ///< of a vector
    std::uint8_t address_bytes = 0;       ///< of the register `address`; 0: the offset is the address
    std::uint8_t mode = 0;                ///< of operations with variants
    std::uint32_t guard = kNone;          ///< predicate
    std::uint32_t address = kNone;        ///< register
    std::int32_t target = -1;             ///< of a branch
    std::int64_t offset = 0;              ///< added to the address
    std::array<std::uint32_t, 16> at{};   ///< registers, see Warp::lanes
    std::array<std::uint8_t, 16> size{};  ///< bytes of each; 0: predicate
    mutable const void* hint = nullptr;   ///< the memory that it used last
    int line = 0;                         ///< of the text, from 1
    int source = -1;                      ///< in Program::sources()
    std::string_view text;
};

/// A kernel with the functions that it calls, which are expanded in place.
struct Kernel {
    std::string name;  ///< "MatrixVector<Fp16, 1>", or as the text has it
    std::vector<Op> ops;
    std::vector<std::size_t> param_offsets, param_sizes;
    std::size_t param_bytes = 0, shared_bytes = 0, local_bytes = 0, register_bytes = 0;
    std::vector<std::byte> constants;  ///< registers of immediates
    bool syncs_warps = false;          ///< has bar.warp.sync
    unsigned max_threads = 1024;       ///< of a block
    mutable int cell_shift = 2;        ///< shared memory is watched in units of this many bits
};

/// Registers that every kernel has at these places, 32 lanes of 32 bits each.
enum Special : std::uint32_t {
    tid_x,
    ntid_x,
    ctaid_x,
    ctaid_y,
    ctaid_z,
    nctaid_x,
    nctaid_y,
    nctaid_z,
    laneid,
    n_special
};
inline constexpr std::uint32_t kRegister32 = 4 * kLanes;

class Program {
  public:
    explicit Program(std::string text);
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    int capability() const { return capability_; }  ///< 80 of sm_80
    /// Names of all kernels, as the text has them.
    const std::vector<std::string>& kernels() const { return names_; }
    const Kernel& kernel(const std::string& name);
    /// "attention.h:120", with the place where it was inlined.
    const std::vector<std::string>& sources() const { return sources_; }
    /// Returns the text's global variable; its contents never change.
    const std::byte* global(std::string_view name) const;
    bool is_global(const std::byte* at, std::size_t n) const;

  private:
    friend class Decoder;
    struct Function {
        std::string_view head, body;
        int line = 0;  // of the body's start
        bool is_kernel = false;
    };
    void find_functions();
    void find_files();
    void add_global(std::string_view statement);
    int source_of(std::string_view loc);

    std::string text_;
    int capability_ = 0;
    std::map<std::string, Function, std::less<>> functions_;
    std::map<std::string, std::vector<std::byte>, std::less<>> globals_;
    std::map<std::string, std::unique_ptr<Kernel>, std::less<>> decoded_;
    std::vector<std::string> names_, sources_;
    std::map<int, std::string> files_;
    std::map<std::string, int, std::less<>> source_index_;
};

/// An instruction of the table: its code, and the bytes of its operands, the result's first.
struct Operation {
    static constexpr std::uint8_t kAnySize = 255;
    Run run = nullptr;
    Kind kind = Kind::plain;
    std::vector<std::uint8_t> sizes;
    std::uint8_t mode = 0;
};

/// Returns the operation of that full name ("add.s32"); null when there is none. Loads, stores and whatever
/// has its own form of operands are decoded apart.
const Operation* find_operation(std::string_view name);

/// Return null for a combination that does not exist.
Run load_of(int memory_bytes, bool is_signed, int register_bytes);
Run store_of(int memory_bytes, int register_bytes);
Run atomic_of(std::string_view operation, std::string_view type);
Run conversion_of(std::string_view to, std::string_view from, std::string_view rounding, bool saturates);
void load_matrices(Warp& warp, const Op& op);
void print(Warp& warp, const Op& op);

}  // namespace ptx
