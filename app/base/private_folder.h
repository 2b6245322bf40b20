/// A folder in the shared temporary folder that nobody else can enter. Any thread; knows base only.
#pragma once

#include <filesystem>

namespace keyhole {

/// Made with a name that cannot be guessed and mode 0700, so that no link can lie in wait in it; removed with
/// its files by the destructor.
class PrivateFolder {
  public:
    /// Throws Error(io).
    PrivateFolder();
    ~PrivateFolder();
    PrivateFolder(const PrivateFolder&) = delete;
    PrivateFolder& operator=(const PrivateFolder&) = delete;
    const std::filesystem::path& path() const { return path_; }
    /// Makes an empty file with mode 0600, which writers of whole files keep. Throws Error(io).
    std::filesystem::path make_file(const char* name) const;

  private:
    std::filesystem::path path_;
};

}  // namespace keyhole
